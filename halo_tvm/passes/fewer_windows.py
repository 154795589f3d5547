"""A part of what a convolution computes is a convolution with less padding.

Before -> after
    y = convolution(x, w, pads=[3, 3]) + b;  z = y[:, :, :-3]   ->   z = convolution(x, w, pads=[3, 0]) + b
Serves
    parts from the beginning, to the end or from the middle, behind sums and products with what all windows have in
    common, where nothing else reads the whole: causal convolutions are written so
Leaves alone
    parts with a step, and those that lack windows over the input itself
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ..dimensions import integers_of
from ..relay_ops.convolution import Convolution
from ..relay_ops.operator import attrs_of, op_name, operator_of
from ..tir_schedules.blocks import is_const
from ._projection_parts import Values
from ._rewrite import rewrite_calls
from .graph_pass import Context, Pass, Report, users_of

_FOR_ALL_WINDOWS = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
Cut = Mapping[int, tuple[int, int]]  # axis -> how many places are missing in front and behind


@dataclass(frozen=True)
class FewerWindows(Pass):
    """Compute no windows that a slice drops."""

    name = "fewer_windows"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        shared = {var for var, readers in users_of(mod["main"]).items() if len(readers) > 1 or None in readers}
        return rewrite_calls(mod, lambda call, value: _trimmed(call, value, shared))


def _trimmed(call: relax.Call, value: Values, shared: Collection[relax.Expr]) -> tuple[relax.Expr, str] | None:
    cut = _cut(call) if op_name(call) == "relax.strided_slice" and _known(call, call.args[0]) else None
    made = _without(call.args[0], cut, value, shared) if cut else None
    return None if made is None else (made, "windows that a slice drops")


def _without(whole: relax.Expr, cut: Cut, value: Values, shared: Collection[relax.Expr]) -> relax.Expr | None:
    """`whole` without what `cut` names; None where no convolution makes it."""
    made = value(whole)
    if whole in shared or not isinstance(made, relax.Call):
        return None
    if operator_of(made) is Convolution:
        return _convolution(made, cut)
    if op_name(made) not in _FOR_ALL_WINDOWS:
        return None
    for at, other in ((0, 1), (1, 0)):
        if _is_common(made.args[other], made, cut) and _known(made.args[at], made):
            inner = _without(made.args[at], cut, value, shared)
            if inner is not None:
                return relax.Call(made.op, [inner, made.args[1]] if at == 0 else [made.args[0], inner], made.attrs)
    return None


def _convolution(call: relax.Call, cut: Cut) -> relax.Expr | None:
    attrs: dict[str, Any] = attrs_of(call)
    strides, pads = list(attrs["strides"]), list(attrs["pads"])
    if attrs["layout"] != "first" or min(cut) < 2:
        return None
    for axis, missing in cut.items():
        for place, count in zip((axis - 2, axis - 2 + len(strides)), missing):
            pads[place] -= count * strides[axis - 2]
    return Convolution.call(*call.args, **{**attrs, "pads": pads}) if min(pads) >= 0 else None


def _cut(call: relax.Call) -> Cut | None:
    """What the strided_slice `call` leaves out, where that is so many places in front and behind."""
    x, at, starts, _, *strides = call.args
    axes, begins = integers_of(at), integers_of(starts)
    if axes is None or begins is None or any(set(integers_of(steps) or [0]) != {1} for steps in strides):
        return None
    cut, sizes = {}, tvm.sym.Analyzer()
    for axis, begin in zip((axis % x.ty.ndim for axis in axes), begins):
        missing = sizes.simplify(x.ty.shape.values[axis] - call.ty.shape.values[axis])
        if not isinstance(missing, tirx.IntImm):
            return None
        if int(missing):
            cut[axis] = (begin, int(missing) - begin)
    return cut if all(min(places) >= 0 for places in cut.values()) else None


def _known(*tensors: relax.Expr) -> bool:
    """Whether these are tensors of one rank whose sizes are known."""
    shapes = [getattr(tensor.ty, "shape", None) for tensor in tensors]
    known = [shape for shape in shapes if isinstance(shape, relax.ShapeExpr)]
    return len(known) == len(shapes) and len({len(shape.values) for shape in known}) == 1


def _is_common(other: relax.Expr, whole: relax.Call, cut: Cut) -> bool:
    """Whether `other` gives the same to all places along the axes of `cut`."""
    shape = getattr(other.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return False
    missing = whole.ty.ndim - len(shape.values)
    return all(axis < missing or is_const(shape.values[axis - missing], 1) for axis in cut)
