"""Resizing: every mode, any axes, sizes known or symbolic.

Interpolation is separable: one axis after the other, each by a table of weights [size, taps] over neighbouring
elements. Tables are computed in float64 by the model itself, since sizes may be symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, relax, te, tirx

from .builder import Builder, expr_dtype, expr_shape
from .sizes import Dim, prim

TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_WIDE = "float64"


@dataclass(frozen=True)
class Way:
    """How elements are found and weighed; the same for all axes."""

    mode: str  # nearest, linear, cubic
    transform: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True)
class Axis:
    """One resized axis; `scale` is None where it is the quotient of symbolic sizes.

    `roi`: beginning and end of what tf_crop_and_resize takes, as shares of the axis.
    """

    axis: int
    scale: float | None
    roi: tuple[float, float] = (0.0, 1.0)


def resized(builder: Builder, x: relax.Expr, table: Sequence[tuple[Axis, Dim]], way: Way) -> relax.Expr:
    """`x` with every axis of `table` brought to its size."""
    builder.refuse_unless(
        way.mode in ("nearest", "linear", "cubic"), f"expected mode nearest, linear or cubic, found {way.mode}"
    )
    builder.refuse_unless(not (way.antialias and way.mode == "nearest"), "expected no antialias with mode nearest")
    shape, dtype = expr_shape(x), expr_dtype(x)
    crops = way.transform == "tf_crop_and_resize"
    todo = []
    for axis, size in table:
        same = builder.sizes.is_equal(size, shape[axis.axis]) and (axis.scale is None or math.isclose(axis.scale, 1.0))
        if same and not (crops and axis.roi != (0.0, 1.0)):
            continue
        needs_scale = way.antialias and axis.scale is None
        builder.refuse_unless(not needs_scale, "expected known sizes or scales with antialias")
        todo.append((axis, size))
    if not todo:
        return x

    def compute(x: te.Tensor, *sizes: Dim) -> te.Tensor:
        if way.mode == "nearest" and not crops:
            return _nearest(x, [a for a, _ in todo], sizes, way)
        wide = "float64" if dtype == "float64" else "float32"
        out = x
        for (axis, _), size in zip(todo, sizes):
            out = _interpolated(out, axis, size, way, wide)
        return te.compute(out.shape, lambda *i: out[i].astype(dtype), name="resized") if out.dtype != dtype else out

    return builder.te(compute, x, *[size for _, size in todo], name="resize")


def _nearest(x: te.Tensor, axes: Sequence[Axis], sizes: Sequence[Dim], way: Way) -> te.Tensor:
    """One move: every element from its nearest source."""
    shape = list(x.shape)
    for axis, size in zip(axes, sizes):
        shape[axis.axis] = prim(size)

    def element(*index):
        at = list(index)
        for axis, size in zip(axes, sizes):
            o, limit = index[axis.axis], x.shape[axis.axis]
            factor = _whole_factor(axis, way)
            if factor is not None:
                at[axis.axis] = tirx.min(tirx.floordiv(o, factor), limit - 1)
            else:
                place, _ = _source(o, axis, limit, prim(size), way)
                at[axis.axis] = _clip(_rounded(place, way.nearest).astype("int64"), limit)
        return x[tuple(at)]

    return te.compute(shape, element, name="nearest")


def _whole_factor(axis: Axis, way: Way) -> int | None:
    """n where the source of o is o // n, whatever the sizes."""
    if axis.scale is None or axis.scale < 1 or axis.scale != int(axis.scale):
        return None
    by_floor = way.transform == "asymmetric" and way.nearest == "floor"
    by_round = way.transform == "half_pixel" and way.nearest.startswith("round")
    return int(axis.scale) if by_floor or by_round else None


def _interpolated(x: te.Tensor, axis: Axis, size: Dim, way: Way, wide: str) -> te.Tensor:
    limit = x.shape[axis.axis]
    size = prim(size)
    taps = _taps(axis, way)
    k = te.reduce_axis((0, taps), "k")

    def parts(o):
        """(source, its left neighbour, what is left of it: in 0 < rest <= 1)."""
        place, outside = _source(o, axis, limit, size, way)
        low = te.ceil(place) - _f(1)
        return place, low, place - low, outside

    def weight(o, tap):
        _, low, rest, _ = parts(o)
        value = _weight(rest, tap - (taps // 2 - 1), axis, way)
        if way.exclude_outside:
            at = low.astype("int64") + tap - (taps // 2 - 1)
            value = tirx.if_then_else(tirx.all(at >= 0, at < limit), value, _f(0))
        return value

    weights = te.compute([size, taps], weight, name="weights")
    if way.exclude_outside or way.antialias:
        j = te.reduce_axis((0, taps), "j")
        sums = te.compute([size], lambda o: te.sum(weights[o, j], axis=j), name="sums")
        raw = weights
        weights = te.compute(
            [size, taps], lambda o, t: raw[o, t] / tirx.Select(sums[o] == _f(0), _f(1), sums[o]), name="shares"
        )

    def start(o):
        return parts(o)[1].astype("int64") - (taps // 2 - 1)

    starts = te.compute([size], start, name="starts")
    shape = list(x.shape)
    shape[axis.axis] = size

    def element(*index):
        o = index[axis.axis]
        at = list(index)
        at[axis.axis] = _clip(starts[o] + k, limit)
        return te.sum(x[tuple(at)].astype(wide) * weights[o, k].astype(wide), axis=k)

    out = te.compute(shape, element, name="interpolated")
    if way.transform != "tf_crop_and_resize":
        return out
    inner = out

    def cropped(*index):
        outside = parts(index[axis.axis])[3]
        return tirx.Select(outside, tirx.const(way.extrapolation, wide), inner[index])

    return te.compute(shape, cropped, name="cropped")


def _source(o: ir.Expr, axis: Axis, limit: ir.Expr, size: ir.Expr, way: Way) -> tuple[ir.Expr, ir.Expr]:
    """(the place in the input that output `o` comes from, whether it is outside), in float64."""
    at = o.astype(_WIDE)
    length = limit.astype(_WIDE)
    scale = _f(axis.scale) if axis.scale is not None else size.astype(_WIDE) / length
    width = scale * length if axis.scale is not None else size.astype(_WIDE)
    inside = tirx.const(False, "bool")
    match way.transform:
        case "asymmetric":
            return at / scale, inside
        case "half_pixel":
            return (at + _f(0.5)) / scale - _f(0.5), inside
        case "pytorch_half_pixel":
            return tirx.Select(width == _f(1), _f(-0.5), (at + _f(0.5)) / scale - _f(0.5)), inside
        case "half_pixel_symmetric":
            shift = length / _f(2) * (_f(1) - size.astype(_WIDE) / width)
            return shift + (at + _f(0.5)) / scale - _f(0.5), inside
        case "align_corners":
            return tirx.Select(
                width == _f(1), _f(0), at * (length - _f(1)) / tirx.max(width - _f(1), _f(1e-30))
            ), inside
    start, end = axis.roi
    span = _f(end - start) * (length - _f(1))
    single = span / _f(2)
    place = tirx.Select(width == _f(1), single, at * span / tirx.max(width - _f(1), _f(1e-30)))
    place = place + _f(start) * (length - _f(1))
    return place, tirx.any(place < _f(0), place > length - _f(1))


def _taps(axis: Axis, way: Way) -> int:
    reach = {"nearest": 1, "linear": 1, "cubic": 2}[way.mode]
    if not way.antialias:
        return 2 * reach
    return 2 - 2 * (math.floor(-reach / min(axis.scale, 1.0)) + 1)


def _weight(rest: ir.Expr, offset: ir.Expr, axis: Axis, way: Way) -> ir.Expr:
    """The share of the element `offset` behind the left neighbour of a place that is `rest` behind it."""
    distance = te.abs(offset.astype(_WIDE) - rest)
    if way.antialias:
        distance = distance * _f(min(axis.scale, 1.0))
    if way.mode == "nearest":
        take_right = {
            "round_prefer_floor": rest > _f(0.5),
            "round_prefer_ceil": rest >= _f(0.5),
            "floor": rest >= _f(1),
            "ceil": rest > _f(0),
        }[way.nearest]
        return tirx.Select(take_right, offset.astype(_WIDE), _f(1) - offset.astype(_WIDE))
    if way.mode == "linear":
        return tirx.max(_f(1) - distance, _f(0))
    a = way.cubic
    near = ((_f(a + 2) * distance - _f(a + 3)) * distance) * distance + _f(1)
    far = ((_f(a) * distance - _f(5 * a)) * distance + _f(8 * a)) * distance - _f(4 * a)
    return tirx.Select(distance <= _f(1), near, tirx.Select(distance < _f(2), far, _f(0)))


def _rounded(place: ir.Expr, mode: str) -> ir.Expr:
    match mode:
        case "round_prefer_floor":
            return te.ceil(place - _f(0.5))
        case "round_prefer_ceil":
            return te.floor(place + _f(0.5))
        case "floor":
            return te.floor(place)
    return te.ceil(place)


def _clip(index: ir.Expr, limit: ir.Expr) -> ir.Expr:
    return tirx.max(tirx.min(index, limit - 1), tirx.const(0, "int64"))


def _f(value: float) -> ir.Expr:
    return tirx.const(float(value), _WIDE)
