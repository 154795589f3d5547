"""Sums, means, products, softmax and contractions of float16 and bfloat16: accumulated in float32, rounded once.

The sum of a thousand numbers of 100 is no number of float16, and their mean is.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, relax, te, tirx, topi

from ..dimensions import is_one
from ._lowering import HALVES, Lowering, plain, reduced

_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype))
_SUMS = {
    "relax.sum": (te.sum, None),
    "relax.mean": (te.sum, lambda total, count: total / count.astype("float32")),
    "relax.prod": (_PRODUCT, None),
}


def lowerings() -> dict[str, Lowering]:
    """For `LegalizeOps`."""
    softmax = {f"relax.nn.{name}": _softmax(name) for name in ("softmax", "log_softmax")}
    contractions = {"relax.matmul": _matmul, "relax.einsum": _einsum}
    return {name: _lowering(name) for name in _SUMS} | softmax | contractions


def _matmul(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Of vectors, and of batches that are broadcast: others are `halo.matmul`."""
    dtype = str(call.ty.dtype)
    if dtype not in HALVES:
        return plain(bb, call)

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, a.shape[-1]), "k")
        row, column = len(a.shape) > 1, len(b.shape) > 1

        def term(*index: ir.Expr) -> ir.Expr:
            lead = index[: len(index) - row - column]
            left = a(*_own(a, lead), *index[len(lead) : len(lead) + row], k)
            right = b(*_own(b, lead), k, *index[len(index) - column :])
            return te.sum(left.astype("float32") * right.astype("float32"), axis=k)

        total = te.compute(list(call.ty.shape.values), term, name="matmul")
        return topi.cast(total, dtype)

    return bb.call_te(compute, *call.args, primfunc_name_hint="matmul")


def _own(x: te.Tensor, index: Sequence[ir.Expr]) -> list[ir.Expr]:
    """Of the places `index` in a batch those of `x`, whose last two axes are not the batch's."""
    lead = x.shape[:-2]
    return [0 if is_one(dim) else place for dim, place in zip(lead, index[len(index) - len(lead) :])]


def _einsum(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)
    if dtype not in HALVES:
        return plain(bb, call)

    def compute(*operands: te.Tensor) -> te.Tensor:
        return topi.cast(topi.einsum(call.attrs.subscripts, *(topi.cast(x, "float32") for x in operands)), dtype)

    return bb.call_te(compute, *call.args[0].fields, primfunc_name_hint="einsum")


def _softmax(name: str) -> Lowering:
    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        dtype = str(call.args[0].ty.dtype)
        if dtype not in HALVES:
            return plain(bb, call)

        def compute(x: te.Tensor) -> te.Tensor:
            wide = getattr(topi.nn, name)(topi.cast(x, "float32"), axis=int(call.attrs.axis))
            return topi.cast(wide, dtype)

        return bb.call_te(compute, call.args[0], primfunc_name_hint=name)

    return lower


def _lowering(name: str) -> Lowering:
    reducer, after = _SUMS[name]

    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if str(call.args[0].ty.dtype) not in HALVES:
            return plain(bb, call)
        return reduced(bb, call, reducer, name.split(".")[1], wide="float32", after=after)

    return lower
