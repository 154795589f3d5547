"""Convolutions: filters with their channels last, pads as SAME or VALID says."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._dynamic import accept, is_dynamic, restored, rounded, sums_within
from ._node import Channels, Node, Refused
from ._registry import writes

_SAME, _VALID = 0, 1
_STEP = 1 << 10  # of a custom operator, whose options nobody else has checked


def auto_pad(node: Node) -> str:
    """The ONNX word; SAME puts the odd element behind."""
    padding = node.option("padding")
    if padding not in (_SAME, _VALID):
        raise Refused(f"expected the padding SAME or VALID, found {padding}")
    return "SAME_UPPER" if padding == _SAME else "VALID"


@writes("CONV_2D")
def conv_2d(node: Node) -> Channels:
    """Filter [out, height, width, in / groups]."""
    groups, sizes = _groups(node, 3), [size for size in node.shape(0)[1:3] if size is not None]
    # In groups, products of levels are sums of floats; at the edges of images of open sizes, what they meet is open.
    if is_dynamic(node) and groups == 1 and len(sizes) == 2:
        return _of_levels(node, sizes)
    return _convolution(node, node.permuted(1, [0, 3, 1, 2]), "hw", groups)


def _of_levels(node: Node, sizes: list[int]) -> Channels:
    """A convolution of floats of images of `sizes` by integers."""
    windows, weights = _windows(node, "hw", 1), node.constant(1, "weights")
    strides, dilations, kernel = windows["strides"], windows["dilations"], weights.shape[1:3]
    # XNNPACK takes it for a product of rows then: each pixel has a grid of its own.
    alone = kernel == (1, 1) and max(strides) == 1
    x = rounded(node, node.x(0, first=True), [1] if alone else [1, 2, 3])
    pads = [0, 0, 0, 0] if auto_pad(node) == "VALID" else _same_pads(sizes, kernel, strides, dilations)
    sums = sums_within(weights.sum(3, dtype=np.int32), sizes, strides, dilations, pads)
    weight = node.emit("Transpose", node.stored(1), perm=[0, 3, 1, 2])
    out = restored(node, node.emit("ConvInteger", x.levels, weight, **windows), x, sums, 2)
    bias = [node.emit("Reshape", node.x(2), node.sizes([-1, 1, 1]))] if node.has(2) else []
    return Channels(node.emit("Add", out, *bias) if bias else out)


@writes("CONV_3D")
def conv_3d(node: Node) -> Channels:
    """Filter [depth, height, width, in / groups, out]."""
    return _convolution(node, node.permuted(1, [4, 3, 0, 1, 2]), "dhw", _groups(node, 3))


@writes("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(node: Node) -> Channels:
    """Filter [1, height, width, out]; the input has a group for each of its channels."""
    return _convolution(node, node.permuted(1, [3, 0, 1, 2]), "hw", _channels(node))


def _channels(node: Node) -> int:
    channels = node.shape(0)[-1] if node.shape(0) else None
    if not channels:
        raise Refused("expected a known number of channels, found none")
    return channels


def _groups(node: Node, axis: int) -> int:
    channels, of_filter = _channels(node), node.shape(1)[axis] if node.rank(1) > axis else 0
    if not of_filter or channels % of_filter:
        raise Refused(f"expected the filter's channels to divide the input's {channels}, found {of_filter}")
    return channels // of_filter


def _convolution(node: Node, weight: str, letters: str, groups: int) -> Channels:
    if is_dynamic(node):
        accept(node)
    inputs = [node.x(0, first=True), weight, *([node.x(2)] if node.has(2) else [])]
    return Channels(node.emit("Conv", *inputs, **_windows(node, letters, groups)))


def _windows(node: Node, letters: str, groups: int) -> dict[str, Any]:
    strides = node.positive(*(f"stride_{c}" for c in letters))
    dilations = node.positive(*(f"dilation_{c}_factor" for c in letters))
    kernel = node.shape(1)[:-2] if len(letters) == 3 else node.shape(1)[1:3]
    pads = _pads(node, kernel, strides, dilations)
    return {"strides": strides, "dilations": dilations, "group": groups, **pads}


def _pads(node: Node, kernel: tuple[int | None, ...], strides: list[int], dilations: list[int]) -> dict[str, object]:
    """The attribute that pads; as numbers with dilation, because onnxruntime knows no word for it then."""
    word, sizes = auto_pad(node), node.shape(0)[1:-1]
    open_steps = any(size is None and stride > 1 for size, stride in zip(sizes, strides))
    if max(dilations) == 1 or word == "VALID" or open_steps or None in kernel:
        return {"auto_pad": word}
    return {"pads": _same_pads(sizes, [k or 1 for k in kernel], strides, dilations)}


def _same_pads(
    sizes: Sequence[int | None], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """What SAME puts in front of each axis, then what it puts behind; a size is not needed where steps are of one."""
    totals = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations):
        steps = 0 if size is None else (-(-size // stride) - 1) * stride - size + 1
        totals.append(max(0, steps + (k - 1) * dilation))
    return [*(t // 2 for t in totals), *(t - t // 2 for t in totals)]


@writes("TRANSPOSE_CONV")
def transpose_conv(node: Node) -> Channels:
    """Inputs: sizes of the output, filter [out, height, width, in], input, perhaps a bias.

    The sizes say how much of the full result is cut off; with SAME the smaller half in front.
    """
    strides, weight = node.positive("stride_h", "stride_w"), node.permuted(1, [3, 0, 1, 2])
    return _transposed(node, (2, 3), weight, node.shape(1)[1:3], strides, [1, 1], auto_pad(node))


@writes("custom operator Convolution2DTransposeBias")
def convolution_2d_transpose_bias(node: Node) -> Channels:
    """MediaPipe's TRANSPOSE_CONV of input, filter and bias: int32 of padding, step along the width, along the height.

    Without sizes of the output: they are those that the file states for it.
    """
    if len(node.operator.custom) < 12:
        raise Refused(f"expected 12 bytes of options, found {len(node.operator.custom)}")
    padding, width, height = struct.unpack_from("<3i", node.operator.custom)
    if padding not in (1, 2) or not (0 < width <= _STEP and 0 < height <= _STEP):
        raise Refused(f"expected a padding of 1 or 2 and steps from 1 to {_STEP}, found {padding}, {width}, {height}")
    weight = node.permuted(1, [3, 0, 1, 2])
    word = "SAME_UPPER" if padding == 1 else "VALID"
    return _transposed(node, (0, 2), weight, node.shape(1)[1:3], [height, width], [1, 1], word)


@writes("CONV_3D_TRANSPOSE")
def conv_3d_transpose(node: Node) -> Channels:
    """As TRANSPOSE_CONV; filter [depth, height, width, out, in]."""
    strides, dilations = (
        node.positive(*(f"{k}_{c}{e}" for c in "dhw")) for k, e in (("stride", ""), ("dilation", "_factor"))
    )
    weight = node.permuted(1, [4, 3, 0, 1, 2])
    return _transposed(node, (2, 3), weight, node.shape(1)[:3], strides, dilations, auto_pad(node))


def _transposed(
    node: Node,
    places: tuple[int, int],
    weight: str,
    kernel: tuple[int | None, ...],
    strides: list[int],
    dilations: list[int],
    padding: str,
) -> Channels:
    """`places` are those of the input and of a bias among the operator's inputs."""
    x, bias = places
    sizes, wanted = node.shape(x)[1:-1], node.output().shape[1:-1]
    pads = []
    for size, kernel_size, stride, dilation, out in zip(sizes, kernel, strides, dilations, wanted):
        if size is None or out is None or kernel_size is None:
            raise Refused("expected known heights and widths, found unknown ones")
        rest = (size - 1) * stride + dilation * (kernel_size - 1) + 1 - out
        if padding == "VALID":
            pads.append((0, rest))
        else:
            pads.append((max(rest, 0) // 2, rest - max(rest, 0) // 2))
    if any(stop < -s for (_, stop), s in zip(pads, strides)):
        raise Refused(f"expected an output of the sizes that the strides make, found {list(wanted)}")
    inputs = [node.x(x, first=True), weight, *([node.x(bias)] if node.has(bias) else [])]
    made = node.emit(
        "ConvTranspose",
        *inputs,
        strides=strides,
        dilations=dilations,
        pads=[*(b for b, _ in pads), *(max(e, 0) for _, e in pads)],
        output_padding=[max(-e, 0) for _, e in pads],
    )
    return Channels(made)
