"""Sums, means, products and softmax of float16 and bfloat16 along axes: accumulated in float32, rounded once.

The sum of a thousand numbers of 100 is no number of float16, and their mean is.
"""

from __future__ import annotations

from tvm import relax, te, tirx, topi

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
    return {name: _lowering(name) for name in _SUMS} | softmax


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
