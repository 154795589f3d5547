"""Convolutions: Conv, ConvTranspose, DeformConv, CausalConvWithState. Any rank, groups, symbolic sizes."""

from __future__ import annotations

import itertools

import numpy as np
from tvm import relax, te, tirx

from ..meaning.broadcast import same_sizes
from ..meaning.convolution import convolution, with_bias
from ..meaning.transposed_convolution import Spread, transposed_convolution
from ..meaning.windows import Window, is_static
from ._node import Node
from ._registry import converter
from ._windows import window_of


@converter("Conv")
def conv(node: Node) -> relax.Expr:
    window = window_of(node, _kernel(node), node.rank(0) - 2)
    return convolution(node, node.x(0), node.x(1), _bias(node, 2), window, int(node.attr("group", 1)))


@converter("ConvTranspose")
def conv_transpose(node: Node) -> relax.Expr:
    rank = node.rank(0) - 2
    window = window_of(node, _kernel(node), rank)
    given = node.attr("output_shape", None)
    spread = Spread(window, tuple(node.attr("output_padding", [0] * rank)), tuple(given[-rank:]) if given else None)
    return transposed_convolution(node, node.x(0), node.x(1), _bias(node, 2), spread, int(node.attr("group", 1)))


@converter("DeformConv")
def deform_conv(node: Node) -> relax.Expr:
    """The window's places moved by offsets, read by linear interpolation, zero outside."""
    kernel, rank = _kernel(node), node.rank(0) - 2
    offset_groups, groups = int(node.attr("offset_group", 1)), int(node.attr("group", 1))
    window = window_of(node, kernel, rank)
    pads = window.pads_over(node.sizes, node.shape(0)[2:])
    node.refuse_unless(is_static(pads), "expected pads, found auto_pad with symbolic sizes")
    channels, outer, inner = node.shape(0)[1], node.shape(1)[0], node.shape(1)[1]
    node.refuse_unless(isinstance(channels, int), "expected a known number of channels")
    points = int(np.prod(kernel))
    dtype, has_mask = node.dtype(0), node.has(4)

    def compute(x: te.Tensor, w: te.Tensor, offset: te.Tensor, *mask: te.Tensor) -> te.Tensor:
        places = list(offset.shape[2:])
        inputs = list(x.shape[2:])

        def sampled(n, c, p, *place):
            group = tirx.floordiv(c, channels // offset_groups)
            rest, ks = p, []
            for k in reversed(kernel):
                ks.insert(0, tirx.floormod(rest, k))
                rest = tirx.floordiv(rest, k)
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
            return total * mask[0][(n, group * points + p, *place)] if mask else total

        columns = te.compute([x.shape[0], channels, points, *places], sampled, name="sampled")
        c, p = te.reduce_axis((0, inner), "c"), te.reduce_axis((0, points), "p")

        def element(n, m, *place):
            first = tirx.floordiv(m, outer // groups) * inner
            rest, ks = p, []
            for k in reversed(kernel):
                ks.insert(0, tirx.floormod(rest, k))
                rest = tirx.floordiv(rest, k)
            return te.sum(columns[(n, first + c, p, *place)] * w[(m, c, *ks)], axis=[c, p])

        return te.compute([x.shape[0], outer, *places], element, name="convolution")

    wide = points * offset_groups
    x = same_sizes(node, node.x(0), [None, inner * groups, *[None] * rank], "input")
    offset = same_sizes(node, node.x(2), [node.shape(0)[0], wide * rank, *node.shape(2)[2:]], "offset")
    node.refuse_unless(
        offset_groups > 0 and channels % offset_groups == 0, f"expected channels in {offset_groups} offset groups"
    )
    args = [x, node.x(1), offset]
    if has_mask:
        args.append(same_sizes(node, node.x(4), [node.shape(0)[0], wide, *node.shape(2)[2:]], "mask"))
    return with_bias(node, node.te(compute, *args, name="convolution_deformed"), _bias(node, 3))


@converter("CausalConvWithState")
def causal_conv(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """Depthwise, looking back only; the last kernel - 1 places are handed on as state."""
    activation = node.attr("activation", "none")
    node.refuse_unless(activation in ("none", "silu", "swish"), f"expected activation none or silu, found {activation}")
    batch, channels, length = node.shape(0)
    back = node.shape(1)[2] - 1
    x = node.x(0)
    if node.has(3):
        past = same_sizes(node, node.x(3), [batch, channels, back], "past_state")
    else:
        past = node.emit(relax.op.zeros(relax.ShapeExpr([batch, channels, back]), node.dtype(0)))
    # Sizes before concatenating: a window of one element needs no state.
    whole = node.emit(relax.op.concat([past, x], 2)) if back else x
    window = Window((back + 1,), (1,), (1,), (0, 0))
    out = convolution(node, whole, node.x(1), _bias(node, 2), window, int(channels))
    if activation != "none":
        out = node.emit(relax.op.multiply(out, node.emit(relax.op.sigmoid(out))))
    if not back:
        return out, past

    def tail(x: te.Tensor) -> te.Tensor:
        start = x.shape[2] - back
        return te.compute([x.shape[0], x.shape[1], back], lambda n, c, i: x[n, c, i + start], name="state")

    return out, node.te(tail, whole)


def _kernel(node: Node) -> list[int]:
    """The kernel's sizes, which the weight knows."""
    shape, weight = node.shape(0), node.shape(1)
    node.refuse_unless(
        len(shape) > 2 and len(weight) == len(shape),
        f"expected x and weight of one rank from 3 on, found {len(shape)} and {len(weight)}",
    )
    node.refuse_unless(all(isinstance(d, int) for d in weight), "expected a weight of known sizes")
    kernel = list(node.attr("kernel_shape", weight[2:]))
    node.refuse_unless(
        kernel == list(weight[2:]), f"expected kernel_shape {list(weight[2:])} as the weight has, found {kernel}"
    )
    return kernel


def _bias(node: Node, index: int) -> relax.Expr | None:
    return node.x(index) if node.has(index) else None
