"""Sampling images at computed places: GridSample, AffineGrid, RoiAlign, MaxRoiPool."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from ...relay_ops.operator import clamped
from ..meaning.broadcast import same_sizes
from ..meaning.grid_sampling import grid_sampling
from ..meaning.region_pooling import Bins, region_pooling
from ..meaning.scalar import round_half_away
from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@converter("GridSample", since=16)
def grid_sample(node: Node) -> relax.Expr:
    """Read x at places given from -1 to 1 along every axis, innermost axis first."""
    mode = node.attr("mode", "linear")
    padding, corners = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    return grid_sampling(node, node.x(0), node.x(1), _MODES.get(mode, mode), padding, corners)


@converter("AffineGrid", since=20)
def affine_grid(node: Node) -> relax.Expr:
    """Places of all elements of an image, moved by a matrix per batch element; innermost axis first."""
    corners = bool(node.attr("align_corners", 0))
    batch, _, *sizes = node.runtime_dims(1)
    rank, dtype = len(sizes), node.dtype(0)
    node.refuse_unless(rank in (2, 3), f"expected a size of rank 4 or 5, found {rank + 2}")
    matrix = same_sizes(node, node.x(0), [batch, rank, rank + 1], "theta")

    def compute(theta: te.Tensor, *dims: Dim) -> te.Tensor:
        spatial = [prim(d) for d in dims]

        def base(o, size):
            at, length = o.astype("float64"), size.astype("float64")
            if corners:
                return at * tirx.const(2.0, "float64") / tirx.max(length - 1.0, tirx.const(1.0, "float64")) - 1.0
            return (at * 2.0 + 1.0) / length - 1.0

        def element(*index):
            n, where, i = index[0], index[1:-1], index[-1]
            total = theta[n, i, rank].astype("float64")
            for j in range(rank):
                axis = rank - 1 - j
                total = total + theta[n, i, j].astype("float64") * base(where[axis], spatial[axis])
            return total.astype(dtype)

        return te.compute([theta.shape[0], *spatial, rank], element, name="affine_grid")

    return node.te(compute, matrix, *sizes)


@converter("RoiAlign", since=10)
def roi_align_10(node: Node) -> relax.Expr:
    return _roi_align(node, half_pixel=False)


@converter("RoiAlign", since=16)
def roi_align(node: Node) -> relax.Expr:
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    node.refuse_unless(
        mode in ("half_pixel", "output_half_pixel"),
        f"expected coordinate_transformation_mode half_pixel or output_half_pixel, found {mode}",
    )
    return _roi_align(node, half_pixel=mode == "half_pixel")


def _roi_align(node: Node, half_pixel: bool) -> relax.Expr:
    """Means (or largest shares) of bilinear samples in the bins of each region."""
    sizes = int(node.attr("output_height", 1)), int(node.attr("output_width", 1))
    ratio, scale = int(node.attr("sampling_ratio", 0)), float(node.attr("spatial_scale", 1.0))
    bins = Bins(sizes, scale, ratio, half_pixel, largest=node.attr("mode", "avg") == "max")
    return region_pooling(node, node.x(0), node.x(1), node.x(2), bins)


@converter("MaxRoiPool")
def max_roi_pool(node: Node) -> relax.Expr:
    """The largest element in the bins of each region [batch, x1, y1, x2, y2]; empty bins give zero."""
    pooled: Sequence[int] = list(node.attr("pooled_shape"))
    node.refuse_unless(
        len(pooled) == 2 and node.rank(0) == 4, "expected images [n, c, h, w] and a pooled_shape of two sizes"
    )
    regions = same_sizes(node, node.x(1), [None, 5], "rois")
    scale, dtype = float(node.attr("spatial_scale", 1.0)), node.dtype(0)

    def compute(x: te.Tensor, rois: te.Tensor) -> te.Tensor:
        sizes = [x.shape[2], x.shape[3]]
        iy, ix = te.reduce_axis((0, sizes[0]), "iy"), te.reduce_axis((0, sizes[1]), "ix")

        def bounds(r, bin_, axis):
            start = round_half_away(rois[r, 2 - axis] * tirx.const(scale, dtype))
            end = round_half_away(rois[r, 4 - axis] * tirx.const(scale, dtype))
            size = tirx.max(end - start + tirx.const(1, dtype), tirx.const(1, dtype)) / tirx.const(pooled[axis], dtype)
            low = te.floor(bin_.astype(dtype) * size) + start
            high = te.ceil((bin_ + 1).astype(dtype) * size) + start
            return low, high

        def element(r, c, ph, pw):
            inside = []
            for axis, (bin_, i) in enumerate(((ph, iy), (pw, ix))):
                low, high = bounds(r, bin_, axis)
                inside += [i.astype(dtype) >= low, i.astype(dtype) < high]
            batch = clamped(rois[r, 0].astype("int64"), x.shape[0])
            return te.max(tirx.if_then_else(tirx.all(*inside), x[batch, c, iy, ix], te.min_value(dtype)), axis=[iy, ix])

        shape = [rois.shape[0], x.shape[1], *pooled]
        found = te.compute(shape, element, name="max_roi_pool")
        empty = te.min_value(dtype)
        return te.compute(
            shape, lambda *i: tirx.Select(found[i] == empty, tirx.const(0, dtype), found[i]), name="filled"
        )

    return node.te(compute, node.x(0), regions)
