"""Means or maxima of the regions of images that detectors propose, sampled in bins."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tvm import ir, relax, te, tirx

from ...relay_ops.operator import clamped
from .broadcast import same_sizes
from .builder import Builder, expr_dtype, expr_shape
from .sizes import prim


@dataclass(frozen=True)
class Bins:
    """How a region is divided and sampled.

    sizes: bins along height and width
    scale: of the regions' places to those of the image
    ratio: samples of a bin along each axis; 0: as many as it has pixels
    half_pixel: whether a place is that of an element's centre, and regions may be smaller than one element
    largest: take the largest share of a sample instead of the mean of samples
    """

    sizes: tuple[int, int]
    scale: float
    ratio: int
    half_pixel: bool
    largest: bool = False


def region_pooling(
    builder: Builder, x: relax.Expr, regions: relax.Expr, batch_of: relax.Expr, bins: Bins
) -> relax.Expr:
    """[region, c, *bins] of images `x` [n, c, h, w] at `regions` [region, (x1, y1, x2, y2)], of image `batch_of`."""
    builder.refuse_unless(len(expr_shape(x)) == 4, f"expected images of rank 4, found {len(expr_shape(x))}")
    regions = same_sizes(builder, regions, [None, 4], "rois")
    batch_of = same_sizes(builder, batch_of, [expr_shape(regions)[0]], "batch_indices")
    dtype = expr_dtype(x)
    wide = "float64" if dtype == "float64" else "float32"

    def f(value: float) -> ir.Expr:
        return tirx.const(value, wide)

    outside, unused = f(-1), f(-2)

    def bounds(rois: te.Tensor, size: ir.Expr, r: ir.Expr, axis: int) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """(start, size of one bin, samples along the axis)."""
        offset = f(0.5 if bins.half_pixel else 0.0)
        start = rois[r, 1 - axis].astype(wide) * f(bins.scale) - offset
        end = rois[r, 3 - axis].astype(wide) * f(bins.scale) - offset
        extent = end - start
        if not bins.half_pixel:
            extent = tirx.max(extent, f(1))
        bin_size = extent / f(bins.sizes[axis])
        count = f(bins.ratio) if bins.ratio > 0 else te.ceil(bin_size)
        # No bin is larger than the image by much: more samples would be outside of it.
        return start, bin_size, tirx.max(tirx.min(count, size.astype(wide) + f(4)), f(0))

    def places(axis: int) -> relax.Expr:
        """[region, bin, sample]: where along the axis a sample lies, or `outside` of the image, or `unused`."""

        def compute(rois: te.Tensor, size: ir.Expr) -> te.Tensor:
            def place(r: ir.Expr, bin_: ir.Expr, i: ir.Expr) -> ir.Expr:
                start, bin_size, count = bounds(rois, size, r, axis)
                at = start + bin_.astype(wide) * bin_size + (i.astype(wide) + f(0.5)) * bin_size / tirx.max(count, f(1))
                length = size.astype(wide)
                inside = tirx.all(at >= f(-1), at <= length)
                at = tirx.Select(inside, tirx.max(tirx.min(at, length), f(0)), outside)
                return tirx.Select(i.astype(wide) < count, at, unused)

            most = tirx.const(bins.ratio, "int64") if bins.ratio > 0 else size + 4
            return te.compute([rois.shape[0], bins.sizes[axis], most], place, name="roi_places")

        return builder.te(compute, regions, prim(expr_shape(x)[2 + axis]), name="roi_places")

    def compute(x: te.Tensor, rois: te.Tensor, batches: te.Tensor, rows: te.Tensor, columns: te.Tensor) -> te.Tensor:
        sizes = [x.shape[2], x.shape[3]]
        iy, ix = te.reduce_axis((0, rows.shape[2]), "iy"), te.reduce_axis((0, columns.shape[2]), "ix")

        def sample(r: ir.Expr, c: ir.Expr, ph: ir.Expr, pw: ir.Expr) -> ir.Expr:
            found = rows[r, ph, iy], columns[r, pw, ix]
            at, rests = [], []
            for size, place in zip(sizes, found, strict=True):
                last = size.astype(wide) - f(1)
                low = tirx.max(tirx.min(te.floor(place), last), f(0))
                rests.append(tirx.Select(low >= last, f(0), place - low))
                at.append(low.astype("int64"))
            batch = clamped(batches[r].astype("int64"), x.shape[0])
            parts = []
            for dy, dx in itertools.product((0, 1), repeat=2):
                share = (rests[0] if dy else f(1) - rests[0]) * (rests[1] if dx else f(1) - rests[1])
                source = x[batch, c, clamped(at[0] + dy, sizes[0]), clamped(at[1] + dx, sizes[1])].astype(wide)
                parts.append(source * share)
            inside = tirx.all(*(place >= f(0) for place in found))
            if bins.largest:
                value = tirx.max(tirx.max(parts[0], parts[1]), tirx.max(parts[2], parts[3]))
                used = tirx.all(*(place > unused for place in found))
                value = tirx.if_then_else(inside, value, f(0))
                return te.max(tirx.if_then_else(used, value, te.min_value(wide)), axis=[iy, ix])
            value = parts[0] + parts[1] + parts[2] + parts[3]
            return te.sum(tirx.if_then_else(inside, value, f(0)), axis=[iy, ix])

        shape = [rois.shape[0], x.shape[1], *bins.sizes]
        total = te.compute(shape, sample, name="roi_align")

        def finished(r: ir.Expr, c: ir.Expr, ph: ir.Expr, pw: ir.Expr) -> ir.Expr:
            if bins.largest:
                nothing = total[r, c, ph, pw] == te.min_value(wide)
                return tirx.Select(nothing, f(0), total[r, c, ph, pw]).astype(dtype)
            count = bounds(rois, sizes[0], r, 0)[2] * bounds(rois, sizes[1], r, 1)[2]
            return (total[r, c, ph, pw] / tirx.max(count, f(1))).astype(dtype)

        return te.compute(shape, finished, name="pooled")

    return builder.te(compute, x, regions, batch_of, places(0), places(1), name="roialign")
