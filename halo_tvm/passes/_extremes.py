"""Maximum and minimum of floating-point rows, right also where every element is infinite.

TVM's own lowering starts from the largest finite number: the maximum of a row of -inf would be -3.4e38, and what asks
for rows without a visible key would not find them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax, te, tirx
from tvm.relax.transform.legalize_ops import statistical

_OPERATIONS = {
    "relax.max": (tirx.max, -math.inf, statistical.topi.max),
    "relax.min": (tirx.min, math.inf, statistical.topi.min),
}
Lowering = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def lowerings() -> dict[str, Lowering]:
    """For `LegalizeOps`."""
    return {name: _lowering(name) for name in _OPERATIONS}


def _lowering(name: str) -> Lowering:
    combine, start, plain = _OPERATIONS[name]

    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, axes, keepdims = call.args[0], call.attrs.axis, bool(call.attrs.keepdims)
        if "float" not in str(x.ty.dtype):
            return bb.call_te(plain, x, axes, keepdims)
        rank = x.ty.ndim
        reduced = sorted(int(a) % rank for a in (axes if axes is not None else range(rank)))
        return bb.call_te(
            lambda t: _extreme(t, reduced, keepdims, combine, start), x, primfunc_name_hint=name.split(".")[1]
        )

    return lower


def _extreme(x: te.Tensor, reduced: list[int], keepdims: bool, combine: Callable, start: float) -> te.Tensor:
    reducer = te.comm_reducer(lambda a, b: combine(a, b), lambda dtype: tirx.const(start, dtype))
    axes = {a: te.reduce_axis((0, x.shape[a]), f"k{a}") for a in reduced}
    kept = [a for a in range(len(x.shape)) if a not in axes]
    shape = [1 if a in axes else x.shape[a] for a in range(len(x.shape))] if keepdims else [x.shape[a] for a in kept]

    def element(*index):
        left = dict(zip(range(len(x.shape)), index) if keepdims else zip(kept, index))
        at = [axes[a] if a in axes else left[a] for a in range(len(x.shape))]
        return reducer(x(*at), axis=list(axes.values()))

    return te.compute(shape, element, name="extreme")
