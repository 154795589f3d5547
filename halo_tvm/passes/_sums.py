"""Sums, means and products of float16 and bfloat16 along axes: accumulated in float32, rounded once.

The sum of a thousand numbers of 100 is no number of float16, and their mean is.
"""

from __future__ import annotations

from tvm import relax, te, tirx

from ._lowering import HALVES, Lowering, plain, reduced

_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype))
_SUMS = {
    "relax.sum": (te.sum, None),
    "relax.mean": (te.sum, lambda total, count: total / count.astype("float32")),
    "relax.prod": (_PRODUCT, None),
}


def lowerings() -> dict[str, Lowering]:
    """For `LegalizeOps`."""
    return {name: _lowering(name) for name in _SUMS}


def _lowering(name: str) -> Lowering:
    reducer, after = _SUMS[name]

    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if str(call.args[0].ty.dtype) not in HALVES:
            return plain(bb, call)
        return reduced(bb, call, reducer, name.split(".")[1], wide="float32", after=after)

    return lower
