"""Resize and Upsample: which sizes, scales and places the attributes ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from tvm import relax

from ..meaning.resizing import NEAREST, TRANSFORMS, Axis, Way, resized
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter


@converter("Upsample", since=1)
def upsample(node: Node) -> relax.Expr:
    if node.opset >= 9:
        scales = [float(v) for v in node.constant(1).reshape(-1)]
    elif node.has_attr("scales"):
        scales = [float(v) for v in node.attr("scales")]
    else:
        scales = [1.0, 1.0, float(node.attr("height_scale")), float(node.attr("width_scale"))]
    mode = {"bilinear": "linear"}.get(node.attr("mode", "nearest"), node.attr("mode", "nearest"))
    return _scaled(node, scales, list(range(node.rank(0))), Way(mode, "asymmetric", "floor"))


@converter("Resize", since=10)
def resize_10(node: Node) -> relax.Expr:
    """The nearest element is the one in front, and behind where an axis shrinks."""
    scales = [float(v) for v in node.constant(1).reshape(-1)]
    way = Way(node.attr("mode", "nearest"), "asymmetric", "floor")
    return _scaled(node, scales, list(range(node.rank(0))), way, shrinking="ceil")


@converter("Resize", since=11)
def resize(node: Node) -> relax.Expr:
    rank = node.rank(0)
    way = Way(
        node.attr("mode", "nearest"),
        node.attr("coordinate_transformation_mode", "half_pixel"),
        node.attr("nearest_mode", "round_prefer_floor"),
        float(node.attr("cubic_coeff_a", -0.75)),
        bool(node.attr("antialias", 0)),
        bool(node.attr("exclude_outside", 0)),
        float(node.attr("extrapolation_value", 0.0)),
    )
    node.refuse_unless(
        way.transform in TRANSFORMS,
        f"expected a coordinate_transformation_mode among {', '.join(TRANSFORMS)}, found {way.transform}",
    )
    node.refuse_unless(
        way.nearest in NEAREST, f"expected a nearest_mode among {', '.join(NEAREST)}, found {way.nearest}"
    )
    axes = [node.axis(a, rank) for a in node.attr("axes", list(range(rank)))]
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
    # A ratio that is kept decides shapes: its sizes must be known before the model runs.
    sizes = node.dims(3) if policy != "stretch" else node.runtime_dims(3)
    node.refuse_unless(len(sizes) == len(axes), f"expected {len(axes)} sizes, found {len(sizes)}")
    shape = node.shape(0)
    if policy != "stretch":
        return _with_aspect(node, sizes, axes, way, rois, policy)
    table = []
    for i, (axis, size) in enumerate(zip(axes, sizes)):
        known = isinstance(size, int) and isinstance(shape[axis], int)
        table.append((Axis(axis, size / shape[axis] if known else None, (rois[i], rois[len(axes) + i])), size))
    return resized(node, node.x(0), table, way)


def _scaled(
    node: Node,
    scales: Sequence[float],
    axes: Sequence[int],
    way: Way,
    rois: Sequence[float] | None = None,
    shrinking: str = "",
) -> relax.Expr:
    """`shrinking`: how the nearest element is found along axes that shrink, where that is another way."""
    node.refuse_unless(len(scales) == len(axes), f"expected {len(axes)} scales, found {len(scales)}")
    node.refuse_unless(all(s > 0 for s in scales), "expected scales above 0")
    rois = rois or [0.0] * len(axes) + [1.0] * len(axes)
    shape = node.shape(0)
    table = [
        (Axis(a, s, (rois[i], rois[len(axes) + i]), shrinking if s < 1 else ""), _scaled_size(node, shape[a], s))
        for i, (a, s) in enumerate(zip(axes, scales))
    ]
    return resized(node, node.x(0), table, way)


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
    node: Node, sizes: Sequence[Dim], axes: Sequence[int], way: Way, rois: Sequence[float], policy: str
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
        (Axis(a, scale, (rois[i], rois[len(axes) + i])), int(scale * d + 0.5))
        for i, (a, d) in enumerate(zip(axes, shape))
    ]
    return resized(node, node.x(0), table, way)
