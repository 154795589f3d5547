"""Convolutions whose places are moved by offsets that the model computes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tvm import ir, relax, te, tirx

from .broadcast import same_sizes
from .builder import Builder, expr_dtype, expr_shape
from .convolution import with_bias
from .windows import Window, is_static


def deformable_convolution(
    builder: Builder,
    x: relax.Expr,
    weight: relax.Expr,
    offset: relax.Expr,
    mask: relax.Expr | None,
    bias: relax.Expr | None,
    window: Window,
    groups: int,
    offset_groups: int,
) -> relax.Expr:
    """The places of `window` moved by `offset`, read by linear interpolation, zero outside; `mask` weighs them.

    x [n, c, *space], weight [m, c / groups, *kernel], offset [n, offset_groups * places * axes, *wanted],
    mask [n, offset_groups * places, *wanted], bias [m]
    """
    kernel, rank = window.kernel, len(window.kernel)
    pads = window.pads_over(builder.sizes, expr_shape(x)[2:])
    builder.refuse_unless(is_static(pads), "expected pads, found auto_pad with symbolic sizes")
    channels, outer, inner = expr_shape(x)[1], expr_shape(weight)[0], expr_shape(weight)[1]
    builder.refuse_unless(isinstance(channels, int), "expected a known number of channels")
    points = math.prod(kernel)
    dtype = expr_dtype(x)

    def compute(x: te.Tensor, w: te.Tensor, offset: te.Tensor, *masks: te.Tensor) -> te.Tensor:
        places = list(offset.shape[2:])
        inputs = list(x.shape[2:])

        def sampled(n: ir.Expr, c: ir.Expr, p: ir.Expr, *place: ir.Expr) -> ir.Expr:
            group = tirx.floordiv(c, channels // offset_groups)
            ks = _unravelled(p, kernel)
            lows, fractions = [], []
            for axis in range(rank):
                moved = offset[(n, (group * points + p) * rank + axis, *place)]
                base = place[axis] * window.strides[axis] - pads[axis] + ks[axis] * window.dilations[axis]
                at = base.astype(dtype) + moved
                # Far away is outside all the same; the bounds keep the conversion to integers defined.
                at = tirx.max(tirx.min(at, (inputs[axis] + 1).astype(dtype)), tirx.const(-2, dtype))
                lows.append(te.floor(at))
                fractions.append(at - te.floor(at))
            total = tirx.const(0, dtype)
            for corner in itertools.product((0, 1), repeat=rank):
                share, at, inside = tirx.const(1, dtype), [], []
                for axis, high in enumerate(corner):
                    share = share * (fractions[axis] if high else tirx.const(1, dtype) - fractions[axis])
                    at.append(lows[axis].astype("int64") + high)
                    inside += [at[-1] >= 0, at[-1] < inputs[axis]]
                total = total + tirx.if_then_else(tirx.all(*inside), x[(n, c, *at)] * share, tirx.const(0, dtype))
            return total * masks[0][(n, group * points + p, *place)] if masks else total

        columns = te.compute([x.shape[0], channels, points, *places], sampled, name="sampled")
        c, p = te.reduce_axis((0, inner), "c"), te.reduce_axis((0, points), "p")

        def element(n: ir.Expr, m: ir.Expr, *place: ir.Expr) -> ir.Expr:
            first = tirx.floordiv(m, outer // groups) * inner
            ks = _unravelled(p, kernel)
            return te.sum(columns[(n, first + c, p, *place)] * w[(m, c, *ks)], axis=[c, p])

        return te.compute([x.shape[0], outer, *places], element, name="convolution")

    wide = points * offset_groups
    x = same_sizes(builder, x, [None, inner * groups, *[None] * rank], "input")
    offset = same_sizes(builder, offset, [expr_shape(x)[0], wide * rank, *expr_shape(offset)[2:]], "offset")
    builder.refuse_unless(
        offset_groups > 0 and channels % offset_groups == 0, f"expected channels in {offset_groups} offset groups"
    )
    args = [x, weight, offset]
    if mask is not None:
        args.append(same_sizes(builder, mask, [expr_shape(x)[0], wide, *expr_shape(offset)[2:]], "mask"))
    return with_bias(builder, builder.te(compute, *args, name="convolution_deformed"), bias)


def _unravelled(number: ir.Expr, sizes: Sequence[int]) -> list[ir.Expr]:
    """The index along each axis of the element of that number."""
    out: list[ir.Expr] = []
    for size in reversed(sizes):
        out.insert(0, tirx.floormod(number, size))
        number = tirx.floordiv(number, size)
    return out
