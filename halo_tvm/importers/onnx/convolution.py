"""Convolutions: Conv, ConvTranspose, DeformConv, CausalConvWithState. Any rank, groups, symbolic sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from ...relay_ops.convolution import Convolution
from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter
from ._spatial import Window, filled, window_of


@converter("Conv")
def conv(node: Node) -> relax.Expr:
    sizes, kernel = _space(node)
    window = window_of(node, sizes, kernel)
    groups = int(node.attr("group", 1))
    weight = node.shape(1)
    node.refuse_unless(groups > 0 and weight[0] % groups == 0, f"expected output channels in {groups} groups")
    x = same_sizes(node, node.x(0), [None, weight[1] * groups, *[None] * len(sizes)], "input")
    args = [filled(node, x, window), node.x(1)]
    attrs = {"layout": "first", **window.attrs(), "groups": groups}
    if window.is_static:
        out = node.emit(Convolution.call(*args, **attrs, pads=window.pads))
    else:  # pads that depend on the sizes

        def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            return Convolution.compute(x, w, **attrs, pads=window_of(node, list(x.shape[2:]), kernel).pads)

        out = node.te(compute, *args)
    return _with_bias(node, out, 2)


@converter("ConvTranspose")
def conv_transpose(node: Node) -> relax.Expr:
    sizes, kernel = _space(node)
    groups = int(node.attr("group", 1))
    window, extra, given = _transposed(node, sizes, kernel)
    channels, inner = node.shape(0)[1], node.shape(1)[1]
    weight = node.value(1)
    node.refuse_unless(
        isinstance(channels, int) and channels == weight.shape[0] and channels % max(groups, 1) == 0 and groups > 0,
        f"expected {weight.shape[0]} channels in {groups} groups, found {channels}",
    )
    if groups == 1 and isinstance(weight, Constant) and node.dtype(0) == weight.dtype == "float32":
        out = _by_matmul(node, sizes, window, extra, given, weight)
    else:
        part = channels // groups
        wide = "float64" if node.dtype(0) == "float64" else "float32"

        def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            windows, more, ends = _transposed(node, list(x.shape[2:]), kernel)
            shape = [x.shape[0], inner * groups, *_full_sizes(node, x.shape[2:], windows, more, ends)]
            c = te.reduce_axis((0, part), "c")
            ks = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernel)]

            def element(n, m, *place):
                group = tirx.floordiv(m, inner)
                inside, at = _sources(place, ks, windows, x.shape[2:])
                product = x[(n, group * part + c, *at)].astype(wide) * w[
                    (group * part + c, m - group * inner, *ks)
                ].astype(wide)
                return te.sum(tirx.if_then_else(inside, product, tirx.const(0, wide)), axis=[c, *ks])

            out = te.compute(shape, element, name="convolution_transposed")
            return out if wide == x.dtype else te.compute(shape, lambda *i: out[i].astype(x.dtype), name="narrow")

        out = node.te(compute, node.x(0), node.x(1))
    return _with_bias(node, out, 2)


def _by_matmul(
    node: Node,
    sizes: Sequence[Dim],
    window: Window,
    extra: Sequence[int],
    given: Sequence[int] | None,
    weight: Constant,
) -> relax.Expr:
    """Each input element times the whole kernel as one product; then every result gathers what falls on it."""
    rank, (channels, outer, *kernel) = len(sizes), weight.shape
    width = outer * int(np.prod(kernel))
    flat = Constant(
        (channels, width), weight.dtype, lambda: weight.array.reshape(channels, width), f"{weight.name}.matrix"
    )
    last = node.emit(relax.op.permute_dims(node.x(0), [0, *range(2, rank + 2), 1]))
    product = node.emit(relax.op.matmul(last, node.graph.expr_of(flat)))
    parts = node.emit(relax.op.reshape(product, [node.shape(0)[0], *sizes, outer, *kernel]))
    whole = tuple(window.kernel) == tuple(window.strides) and not any(window.pads) and not any(extra) and given is None
    if whole and set(window.dilations) == {1}:  # results do not overlap: a move
        order = [0, rank + 1]
        for axis in range(rank):
            order += [1 + axis, rank + 2 + axis]
        moved = node.emit(relax.op.permute_dims(parts, order))
        full = [node.sizes.simplify(s * k) for s, k in zip(sizes, kernel)]
        return node.emit(relax.op.reshape(moved, [node.shape(0)[0], outer, *full]))

    def gather(x: te.Tensor) -> te.Tensor:
        inputs = list(x.shape[1 : 1 + rank])
        windows, more, ends = _transposed(node, inputs, kernel)
        shape = [x.shape[0], outer, *_full_sizes(node, inputs, windows, more, ends)]
        ks = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernel)]

        def element(n, m, *place):
            inside, at = _sources(place, ks, windows, inputs)
            return te.sum(tirx.if_then_else(inside, x[(n, *at, m, *ks)], tirx.const(0, x.dtype)), axis=ks)

        return te.compute(shape, element, name="overlap")

    return node.te(gather, parts)


def _transposed(node: Node, sizes: Sequence[Dim], kernel: Sequence[int]) -> tuple[Window, list[int], list[int] | None]:
    """(window whose pads are cut off the full result, output_padding, output_shape or None)."""
    rank = len(sizes)
    extra = list(node.attr("output_padding", [0] * rank))
    given = node.attr("output_shape", None)
    given = list(given)[-rank:] if given else None
    auto = node.attr("auto_pad", "NOTSET") or "NOTSET"
    strides, dilations = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
    if given is None and auto not in ("SAME_UPPER", "SAME_LOWER"):
        return window_of(node, sizes, kernel), extra, None
    wanted = given if given is not None else [node.sizes.simplify(s * t) for s, t in zip(sizes, strides)]
    begins, ends = [], []
    for size, stride, dilation, k, more, target in zip(sizes, strides, dilations, kernel, extra, wanted):
        total = node.sizes.simplify((size - 1) * stride + (more + (k - 1) * dilation + 1) - target)
        total = node.sizes.maximum(total, 0) if given is None else total
        half = node.sizes.floordiv(total, 2)
        rest = node.sizes.simplify(total - half)
        begins.append(half if auto == "SAME_UPPER" else rest)
        ends.append(rest if auto == "SAME_UPPER" else half)
    return Window(tuple(kernel), tuple(strides), tuple(dilations), (*begins, *ends)), extra, given


def _full_sizes(
    node: Node, sizes: Sequence[Dim], window: Window, extra: Sequence[int], given: Sequence[int] | None
) -> list[Dim]:
    if given is not None:
        return list(given)
    rank = len(sizes)
    return [
        node.sizes.simplify(
            (sizes[i] - 1) * window.strides[i]
            + (extra[i] + (window.kernel[i] - 1) * window.dilations[i] + 1)
            - window.pads[i]
            - window.pads[rank + i]
        )
        for i in range(rank)
    ]


def _sources(place: Sequence, ks: Sequence, window: Window, sizes: Sequence[Dim]) -> tuple[object, list]:
    """Which element of the input meets kernel element `ks` at `place`, and whether there is one."""
    inside, at = [], []
    for i, (o, k) in enumerate(zip(place, ks)):
        shifted = o + window.pads[i] - k * window.dilations[i]
        source = tirx.floordiv(shifted, window.strides[i])
        inside += [shifted >= 0, source < sizes[i]]
        if window.strides[i] != 1:
            inside.append(tirx.floormod(shifted, window.strides[i]) == 0)
        at.append(source)
    return tirx.all(*inside), at


@converter("DeformConv")
def deform_conv(node: Node) -> relax.Expr:
    """The window's places moved by offsets, read by linear interpolation, zero outside."""
    sizes, kernel = _space(node)
    rank, offset_groups, groups = len(sizes), int(node.attr("offset_group", 1)), int(node.attr("group", 1))
    window = window_of(node, sizes, kernel)
    node.refuse_unless(window.is_static, "expected pads, found auto_pad with symbolic sizes")
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
                base = place[axis] * window.strides[axis] - window.pads[axis] + ks[axis] * window.dilations[axis]
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
    return _with_bias(node, node.te(compute, *args), 3)


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
    attrs = {"layout": "first", "strides": [1], "dilations": [1], "pads": [0, 0], "groups": int(channels)}
    out = node.emit(Convolution.call(whole, node.x(1), **attrs))
    out = node.emit(_with_bias(node, out, 2))
    if activation != "none":
        out = node.emit(relax.op.multiply(out, node.emit(relax.op.sigmoid(out))))
    if not back:
        return out, past

    def tail(x: te.Tensor) -> te.Tensor:
        start = x.shape[2] - back
        return te.compute([x.shape[0], x.shape[1], back], lambda n, c, i: x[n, c, i + start], name="state")

    return out, node.te(tail, whole)


def _space(node: Node) -> tuple[list[Dim], list[int]]:
    """(spatial sizes of input 0, the kernel's sizes), which the weight knows."""
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
    return list(shape[2:]), kernel


def _with_bias(node: Node, out: relax.Expr, index: int) -> relax.Expr:
    """`out` plus input `index`, a vector over the channels; `out` itself without one."""
    if not node.has(index):
        return out
    rank = len(expr_shape(out))
    bias = node.emit(relax.op.reshape(node.x(index), [1, node.shape(index)[0], *[1] * (rank - 2)]))
    return relax.op.add(out, bias)
