"""Resize and Upsample: every mode, any axes, sizes known or symbolic.

Interpolation is separable: one axis after the other, each by a table of weights [size, taps] over neighbouring
elements. Tables are computed in float64 by the model itself, since sizes may be symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from tvm import ir, relax, te, tirx

from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter

_TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_WIDE = "float64"


@dataclass(frozen=True)
class _Way:
    """How elements are found and weighed; the same for all axes."""

    mode: str  # nearest, linear, cubic
    transform: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True)
class _Axis:
    """One resized axis; `scale` is None where it is the quotient of symbolic sizes."""

    axis: int
    scale: float | None
    roi: tuple[float, float] = (0.0, 1.0)


@converter("Upsample", since=1)
def upsample(node: Node) -> relax.Expr:
    if node.opset >= 9:
        scales = [float(v) for v in node.constant(1).reshape(-1)]
    elif node.has_attr("scales"):
        scales = [float(v) for v in node.attr("scales")]
    else:
        scales = [1.0, 1.0, float(node.attr("height_scale")), float(node.attr("width_scale"))]
    mode = {"bilinear": "linear"}.get(node.attr("mode", "nearest"), node.attr("mode", "nearest"))
    return _scaled(node, scales, list(range(node.rank(0))), _Way(mode, "asymmetric", "floor"))


@converter("Resize", since=10)
def resize_10(node: Node) -> relax.Expr:
    scales = [float(v) for v in node.constant(1).reshape(-1)]
    return _scaled(node, scales, list(range(node.rank(0))), _Way(node.attr("mode", "nearest"), "asymmetric", "floor"))


@converter("Resize", since=11)
def resize(node: Node) -> relax.Expr:
    rank = node.rank(0)
    way = _Way(
        node.attr("mode", "nearest"),
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("nearest_mode", "round_prefer_floor"),
        float(node.attr("cubic_coeff_a", -0.75)),
        bool(node.attr("antialias", 0)),
        bool(node.attr("exclude_outside", 0)),
        float(node.attr("extrapolation_value", 0.0)),
    )
    node.refuse_unless(
        way.transform in _TRANSFORMS,
        f"expected a coordinate_transformation_mode among {', '.join(_TRANSFORMS)}, found {way.transform}",
    )
    node.refuse_unless(
        way.nearest in _NEAREST, f"expected a nearest_mode among {', '.join(_NEAREST)}, found {way.nearest}"
    )
    axes = [int(a) % rank for a in node.attr("axes", list(range(rank)))]
    rois = [0.0] * len(axes) + [1.0] * len(axes)
    if way.transform == "tf_crop_and_resize":
        rois = [float(v) for v in node.constant(1).reshape(-1)]
        node.refuse_unless(len(rois) == 2 * len(axes), f"expected a roi of {2 * len(axes)} numbers, found {len(rois)}")
    # An empty tensor stands for an input that is left out.
    by_scales = node.has(2) and node.shape(2) != (0,)
    if by_scales:
        scales = [float(v) for v in node.constant(2).reshape(-1)]
        return _scaled(node, scales, axes, way, rois)
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    # These two decide shapes and numbers of taps: their sizes must be known before the model runs.
    sizes = node.dims(3) if way.antialias or policy != "stretch" else node.runtime_dims(3)
    node.refuse_unless(len(sizes) == len(axes), f"expected {len(axes)} sizes, found {len(sizes)}")
    shape = node.shape(0)
    if policy != "stretch":
        return _with_aspect(node, sizes, axes, way, rois, policy)
    table = []
    for i, (axis, size) in enumerate(zip(axes, sizes)):
        known = isinstance(size, int) and isinstance(shape[axis], int)
        table.append((_Axis(axis, size / shape[axis] if known else None, (rois[i], rois[len(axes) + i])), size))
    return _resized(node, table, way)


def _scaled(
    node: Node, scales: Sequence[float], axes: Sequence[int], way: _Way, rois: Sequence[float] | None = None
) -> relax.Expr:
    node.refuse_unless(len(scales) == len(axes), f"expected {len(axes)} scales, found {len(scales)}")
    node.refuse_unless(all(s > 0 for s in scales), "expected scales above 0")
    rois = rois or [0.0] * len(axes) + [1.0] * len(axes)
    shape = node.shape(0)
    table = [
        (_Axis(a, s, (rois[i], rois[len(axes) + i])), _scaled_size(node, shape[a], s))
        for i, (a, s) in enumerate(zip(axes, scales))
    ]
    return _resized(node, table, way)


def _scaled_size(node: Node, size: Dim, scale: float) -> Dim:
    """floor(size * scale), the scale being float32."""
    if isinstance(size, int):
        return int(math.floor(np.float32(size) * np.float32(scale)))
    fraction = Fraction(scale).limit_denominator(4096)
    node.refuse_unless(
        np.float32(fraction.numerator / fraction.denominator) == np.float32(scale),
        f"expected a scale that is a simple fraction for an axis of symbolic size, found {scale}",
    )
    return node.sizes.floordiv(size * fraction.numerator, fraction.denominator)


def _with_aspect(
    node: Node, sizes: Sequence[Dim], axes: Sequence[int], way: _Way, rois: Sequence[float], policy: str
) -> relax.Expr:
    shape = [node.shape(0)[a] for a in axes]
    node.refuse_unless(
        policy in ("not_larger", "not_smaller"),
        f"expected keep_aspect_ratio_policy stretch, not_larger or not_smaller, found {policy}",
    )
    node.refuse_unless(
        all(isinstance(d, int) for d in (*sizes, *shape)), f"expected known sizes for keep_aspect_ratio_policy {policy}"
    )
    scale = (min if policy == "not_larger" else max)(s / d for s, d in zip(sizes, shape))
    table = [
        (_Axis(a, scale, (rois[i], rois[len(axes) + i])), int(scale * d + 0.5))
        for i, (a, d) in enumerate(zip(axes, shape))
    ]
    return _resized(node, table, way)


def _resized(node: Node, table: Sequence[tuple[_Axis, Dim]], way: _Way) -> relax.Expr:
    """Input 0 with every axis of `table` brought to its size."""
    node.refuse_unless(
        way.mode in ("nearest", "linear", "cubic"), f"expected mode nearest, linear or cubic, found {way.mode}"
    )
    node.refuse_unless(not (way.antialias and way.mode == "nearest"), "expected no antialias with mode nearest")
    shape, dtype = node.shape(0), node.dtype(0)
    crops = way.transform == "tf_crop_and_resize"
    todo = []
    for axis, size in table:
        same = node.sizes.is_equal(size, shape[axis.axis]) and (axis.scale is None or math.isclose(axis.scale, 1.0))
        if same and not (crops and axis.roi != (0.0, 1.0)):
            continue
        needs_scale = way.antialias and axis.scale is None
        node.refuse_unless(not needs_scale, "expected known sizes or scales with antialias")
        todo.append((axis, size))
    if not todo:
        return node.x(0)

    def compute(x: te.Tensor, *sizes: Dim) -> te.Tensor:
        if way.mode == "nearest" and not crops:
            return _nearest(x, [a for a, _ in todo], sizes, way)
        wide = "float64" if dtype == "float64" else "float32"
        out = x
        for (axis, _), size in zip(todo, sizes):
            out = _interpolated(out, axis, size, way, wide)
        return te.compute(out.shape, lambda *i: out[i].astype(dtype), name="resized") if out.dtype != dtype else out

    return node.te(compute, node.x(0), *[size for _, size in todo])


def _nearest(x: te.Tensor, axes: Sequence[_Axis], sizes: Sequence[Dim], way: _Way) -> te.Tensor:
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


def _whole_factor(axis: _Axis, way: _Way) -> int | None:
    """n where the source of o is o // n, whatever the sizes."""
    if axis.scale is None or axis.scale < 1 or axis.scale != int(axis.scale):
        return None
    by_floor = way.transform == "asymmetric" and way.nearest == "floor"
    by_round = way.transform == "half_pixel" and way.nearest.startswith("round")
    return int(axis.scale) if by_floor or by_round else None


def _interpolated(x: te.Tensor, axis: _Axis, size: Dim, way: _Way, wide: str) -> te.Tensor:
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


def _source(o: ir.Expr, axis: _Axis, limit: ir.Expr, size: ir.Expr, way: _Way) -> tuple[ir.Expr, ir.Expr]:
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


def _taps(axis: _Axis, way: _Way) -> int:
    reach = {"nearest": 1, "linear": 1, "cubic": 2}[way.mode]
    if not way.antialias:
        return 2 * reach
    return 2 - 2 * (math.floor(-reach / min(axis.scale, 1.0)) + 1)


def _weight(rest: ir.Expr, offset: ir.Expr, axis: _Axis, way: _Way) -> ir.Expr:
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
