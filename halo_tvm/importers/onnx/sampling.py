"""Sampling images at computed places: GridSample, AffineGrid, RoiAlign, MaxRoiPool."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tvm import ir, relax, te, tirx

from ..meaning.broadcast import same_sizes
from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@converter("GridSample", since=16)
def grid_sample(node: Node) -> relax.Expr:
    """Read x at places given from -1 to 1 along every axis, innermost axis first."""
    rank = node.rank(0) - 2
    mode = node.attr("mode", "linear")
    mode = _MODES.get(mode, mode)
    padding, corners = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    node.refuse_unless(mode in ("linear", "cubic", "nearest"), f"expected mode linear, cubic or nearest, found {mode}")
    node.refuse_unless(
        padding in ("zeros", "border", "reflection"),
        f"expected padding_mode zeros, border or reflection, found {padding}",
    )
    node.refuse_unless(rank > 0 and node.rank(1) == rank + 2, "expected x and grid of one rank from 3 on")
    grid = same_sizes(node, node.x(1), [node.shape(0)[0], *node.shape(1)[1:-1], rank], "grid")
    dtype = "float64" if node.dtype(1) == "float64" else "float32"

    def compute(x: te.Tensor, grid: te.Tensor) -> te.Tensor:
        sizes = list(x.shape[2:])
        borders = [_border(n, corners, dtype) for n in sizes]
        one, half = tirx.const(1, dtype), tirx.const(0.5, dtype)

        def place(*index):
            n, where, axis = index[0], index[1:-1], index[-1]
            out = tirx.const(0, dtype)
            for a in range(rank):
                at = grid[(n, *where, rank - 1 - a)].astype(dtype)
                length = sizes[a].astype(dtype)
                at = (at + one) * half * (length - one) if corners else ((at + one) * length - one) * half
                if mode == "nearest":
                    at = te.nearbyint(at)
                low, high = borders[a]
                if padding == "border":
                    at = tirx.max(tirx.min(at, length - one), tirx.const(0, dtype))
                elif padding == "reflection":
                    at = _reflected(at, low, high, dtype)
                # Far away is outside all the same; the bounds keep the conversion to integers defined.
                at = tirx.max(tirx.min(at, length + tirx.const(4, dtype)), tirx.const(-4, dtype))
                out = at if a == 0 else tirx.Select(axis == a, at, out)
            return out

        places = te.compute([*grid.shape[:-1], rank], place, name="places")
        taps = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
        shape = [x.shape[0], x.shape[1], *grid.shape[1:-1]]

        def element(*index):
            n, c, where = index[0], index[1], index[2:]
            lows, weights = [], []
            for a in range(rank):
                at = places[(n, *where, a)]
                low = te.floor(at)
                lows.append(low.astype("int64"))
                weights.append(_shares(at - low, mode, dtype))
            total = tirx.const(0, dtype)
            for choice in itertools.product(range(len(taps)), repeat=rank):
                share = one
                at, inside = [], []
                for a, tap in enumerate(choice):
                    share = share * weights[a][tap]
                    position = lows[a] + taps[tap]
                    if padding == "zeros":
                        inside += [position >= 0, position < sizes[a]]
                    elif padding == "reflection":
                        low, high = borders[a]
                        position = _reflected(position.astype(dtype), low, high, dtype).astype("int64")
                    at.append(position if padding == "zeros" else _clip(position, sizes[a]))
                value = x[(n, c, *at)].astype(dtype)
                if inside:
                    value = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype))
                total = total + value * share
            return total.astype(x.dtype)

        return te.compute(shape, element, name="sampled")

    return node.te(compute, node.x(0), grid)


def _border(size: ir.Expr, corners: bool, dtype: str) -> tuple[ir.Expr, ir.Expr]:
    length = size.astype(dtype)
    if corners:
        return tirx.const(0, dtype), length - tirx.const(1, dtype)
    return tirx.const(-0.5, dtype), length - tirx.const(0.5, dtype)


def _reflected(at: ir.Expr, low: ir.Expr, high: ir.Expr, dtype: str) -> ir.Expr:
    """`at` mirrored at both ends until it is between them."""
    span = tirx.max(high - low, tirx.const(1e-6, dtype))

    def folded(distance: ir.Expr, near: ir.Expr, sign: int) -> ir.Expr:
        turns = te.trunc(distance / span)
        rest = distance - turns * span
        odd = turns - te.floor(turns * tirx.const(0.5, dtype)) * tirx.const(2, dtype) != tirx.const(0, dtype)
        far = high if sign > 0 else low
        return tirx.Select(odd, far - rest if sign > 0 else far + rest, near + rest if sign > 0 else near - rest)

    below, above = folded(low - at, low, 1), folded(at - high, high, -1)
    return tirx.Select(at < low, below, tirx.Select(at > high, above, at))


def _shares(rest: ir.Expr, mode: str, dtype: str) -> list[ir.Expr]:
    """Weights of the neighbours of a place that is `rest` behind its left one."""

    def f(value: float) -> ir.Expr:
        return tirx.const(value, dtype)

    if mode == "nearest":
        return [f(1)]
    if mode == "linear":
        return [f(1) - rest, rest]
    a = -0.75
    out = []
    for distance, near in ((rest + f(1), False), (rest, True), (f(1) - rest, True), (f(2) - rest, False)):
        if near:
            out.append((f(a + 2) * distance - f(a + 3)) * distance * distance + f(1))
        else:
            out.append(((f(a) * distance - f(5 * a)) * distance + f(8 * a)) * distance - f(4 * a))
    return out


def _clip(index: ir.Expr, size: ir.Expr) -> ir.Expr:
    return tirx.max(tirx.min(index, size - 1), tirx.const(0, "int64"))


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
    height, width = int(node.attr("output_height", 1)), int(node.attr("output_width", 1))
    ratio, scale = int(node.attr("sampling_ratio", 0)), float(node.attr("spatial_scale", 1.0))
    largest = node.attr("mode", "avg") == "max"
    regions = same_sizes(node, node.x(1), [None, 4], "rois")
    batch_of = same_sizes(node, node.x(2), [node.shape(1)[0]], "batch_indices")
    node.refuse_unless(node.rank(0) == 4, f"expected images of rank 4, found {node.rank(0)}")
    dtype = node.dtype(0)
    wide = "float64" if dtype == "float64" else "float32"

    def f(value: float) -> ir.Expr:
        return tirx.const(value, wide)

    bins = [height, width]
    outside, unused = f(-1), f(-2)

    def bounds(rois: te.Tensor, size: ir.Expr, r: ir.Expr, axis: int) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """(start, size of one bin, samples along the axis)."""
        offset = f(0.5 if half_pixel else 0.0)
        start = rois[r, 1 - axis].astype(wide) * f(scale) - offset
        end = rois[r, 3 - axis].astype(wide) * f(scale) - offset
        extent = end - start
        if not half_pixel:
            extent = tirx.max(extent, f(1))
        bin_size = extent / f(bins[axis])
        count = f(ratio) if ratio > 0 else te.ceil(bin_size)
        # No bin is larger than the image by much: more samples would be outside of it.
        return start, bin_size, tirx.max(tirx.min(count, size.astype(wide) + f(4)), f(0))

    def places(axis: int) -> relax.Expr:
        """[region, bin, sample]: where along the axis a sample lies, or `outside` of the image, or `unused`."""

        def compute(rois: te.Tensor, size: ir.Expr) -> te.Tensor:
            def place(r, bin_, i):
                start, bin_size, count = bounds(rois, size, r, axis)
                at = start + bin_.astype(wide) * bin_size + (i.astype(wide) + f(0.5)) * bin_size / tirx.max(count, f(1))
                length = size.astype(wide)
                inside = tirx.all(at >= f(-1), at <= length)
                at = tirx.Select(inside, tirx.max(tirx.min(at, length), f(0)), outside)
                return tirx.Select(i.astype(wide) < count, at, unused)

            most = tirx.const(ratio, "int64") if ratio > 0 else size + 4
            return te.compute([rois.shape[0], bins[axis], most], place, name="roi_places")

        return node.te(compute, regions, prim(node.shape(0)[2 + axis]), name="roi_places")

    def compute(x: te.Tensor, rois: te.Tensor, batches: te.Tensor, rows: te.Tensor, columns: te.Tensor) -> te.Tensor:
        sizes = [x.shape[2], x.shape[3]]
        iy, ix = te.reduce_axis((0, rows.shape[2]), "iy"), te.reduce_axis((0, columns.shape[2]), "ix")

        def sample(r, c, ph, pw):
            found = rows[r, ph, iy], columns[r, pw, ix]
            at, rests = [], []
            for size, place in zip(sizes, found, strict=True):
                last = size.astype(wide) - f(1)
                low = tirx.max(tirx.min(te.floor(place), last), f(0))
                rests.append(tirx.Select(low >= last, f(0), place - low))
                at.append(low.astype("int64"))
            batch = _clip(batches[r].astype("int64"), x.shape[0])
            parts = []
            for dy, dx in itertools.product((0, 1), repeat=2):
                share = (rests[0] if dy else f(1) - rests[0]) * (rests[1] if dx else f(1) - rests[1])
                source = x[batch, c, _clip(at[0] + dy, sizes[0]), _clip(at[1] + dx, sizes[1])].astype(wide)
                parts.append(source * share)
            inside = tirx.all(*(place >= f(0) for place in found))
            if largest:
                value = tirx.max(tirx.max(parts[0], parts[1]), tirx.max(parts[2], parts[3]))
                used = tirx.all(*(place > unused for place in found))
                value = tirx.if_then_else(inside, value, f(0))
                return te.max(tirx.if_then_else(used, value, te.min_value(wide)), axis=[iy, ix])
            value = parts[0] + parts[1] + parts[2] + parts[3]
            return te.sum(tirx.if_then_else(inside, value, f(0)), axis=[iy, ix])

        shape = [rois.shape[0], x.shape[1], height, width]
        total = te.compute(shape, sample, name="roi_align")

        def finished(r, c, ph, pw):
            if largest:
                nothing = total[r, c, ph, pw] == te.min_value(wide)
                return tirx.Select(nothing, f(0), total[r, c, ph, pw]).astype(dtype)
            count = bounds(rois, sizes[0], r, 0)[2] * bounds(rois, sizes[1], r, 1)[2]
            return (total[r, c, ph, pw] / tirx.max(count, f(1))).astype(dtype)

        return te.compute(shape, finished, name="pooled")

    return node.te(compute, node.x(0), regions, batch_of, places(0), places(1))


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
            start = te.round(rois[r, 2 - axis] * tirx.const(scale, dtype))
            end = te.round(rois[r, 4 - axis] * tirx.const(scale, dtype))
            size = tirx.max(end - start + tirx.const(1, dtype), tirx.const(1, dtype)) / tirx.const(pooled[axis], dtype)
            low = te.floor(bin_.astype(dtype) * size) + start
            high = te.ceil((bin_ + 1).astype(dtype) * size) + start
            return low, high

        def element(r, c, ph, pw):
            inside = []
            for axis, (bin_, i) in enumerate(((ph, iy), (pw, ix))):
                low, high = bounds(r, bin_, axis)
                inside += [i.astype(dtype) >= low, i.astype(dtype) < high]
            batch = _clip(rois[r, 0].astype("int64"), x.shape[0])
            return te.max(tirx.if_then_else(tirx.all(*inside), x[batch, c, iy, ix], te.min_value(dtype)), axis=[iy, ix])

        shape = [rois.shape[0], x.shape[1], *pooled]
        found = te.compute(shape, element, name="max_roi_pool")
        empty = te.min_value(dtype)
        return te.compute(
            shape, lambda *i: tirx.Select(found[i] == empty, tirx.const(0, dtype), found[i]), name="filled"
        )

    return node.te(compute, node.x(0), regions)
