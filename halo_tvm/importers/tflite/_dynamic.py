"""Float activations by weights in 8 or 4 bits (dynamic range): they are rounded at run time, products are integer.

s = (max x - min x) / 255,  zero = round(-128 - min x / s),  q = round(x / s) + zero      over a row, or over an image
x @ w = (q @ integers - zero * sums of the integers' columns) * s * scales

XNNPACK computes that in LiteRT, whose older kernels have max |x| / 127 without a zero where no file asks for one.
Source: xnn_f32_qd8_asymmetric_quantization_params of XNNPACK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._node import Node

_ERROR = 0.05  # of the largest output: XNNPACK may be left out, and some layers are computed in floats here
_LEAST = 1e-30  # of a scale: a row of zeros has none
_INT8, _INT32, _FLOAT = 3, 6, 1  # ONNX's numbers of the types


def is_dynamic(node: Node) -> bool:
    """Whether input 0 is floats and input 1 a weight of the file on a grid around 0."""
    weight = node.tensor(1)
    return (
        node.tensor(0).dtype == "float32"
        and weight.dtype in ("int8", "int4")
        and weight.grid is not None
        and weight.data is not None
        and not weight.grid.zeros.any()
    )


def accept(node: Node) -> None:
    """Let results be as far off as LiteRT's are, which rounds the activations that meet such weights."""
    node.graph.writer.accept(_ERROR)


@dataclass(frozen=True)
class Rounded:
    """`levels` in int8; `scale` and `zero` (int32) have one element for each slice."""

    levels: str
    scale: str
    zero: str


def rounded(node: Node, x: str, axes: list[int]) -> Rounded:
    """`x` on a grid of its own for each slice over `axes`, 0 among its places."""
    accept(node)
    zero = node.const(0, np.float32)
    low = node.emit("Min", node.emit("ReduceMin", x, node.sizes(axes), keepdims=1), zero)
    high = node.emit("Max", node.emit("ReduceMax", x, node.sizes(axes), keepdims=1), zero)
    scale = node.emit("Div", node.emit("Sub", high, low), node.const(255, np.float32))
    scale = node.emit("Max", scale, node.const(_LEAST, np.float32))
    lowest, highest = (node.const(v, np.float32) for v in (-128, 127))
    place = node.emit("Round", node.emit("Sub", lowest, node.emit("Div", low, scale)))
    levels = node.emit("Add", node.emit("Round", node.emit("Div", x, scale)), place)
    levels = node.emit("Cast", node.emit("Clip", levels, lowest, highest), to=_INT8)
    return Rounded(levels, scale, node.emit("Cast", place, to=_INT32))


def restored(node: Node, total: str, x: Rounded, sums: NDArray[Any], trailing: int) -> str:
    """Products of levels as floats; `sums` are those of the weights that each of them met.

    The weight's scales run along a dimension with `trailing` ones behind it.
    """
    grid = node.tensor(1).grid
    assert grid is not None, "asked of weights on a grid only"
    scales = grid.scales.astype(np.float32)
    scales = scales.reshape(()) if scales.size == 1 else scales.reshape(-1, *[1] * trailing)
    total = node.emit("Sub", total, node.emit("Mul", x.zero, node.graph.constant(sums.astype(np.int32))))
    floats = node.emit("Mul", node.emit("Cast", total, to=_FLOAT), x.scale)
    return node.emit("Mul", floats, node.graph.constant(scales))


def sums_within(
    weight: NDArray[Any], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> NDArray[np.int32]:
    """For each output of a convolution of images of `sizes`, the sum of the weights [out, h, w] that meet no padding.

    `pads` are those in front and behind of each axis: (top, left, bottom, right). Without any the sums are [out, 1, 1].
    """
    if not any(pads):
        every: NDArray[np.int32] = weight.sum((1, 2), np.int32, keepdims=True)
        return every
    met = []
    for axis, size in enumerate(sizes):
        kernel, first, last = weight.shape[1 + axis], pads[axis], pads[axis + 2]
        outputs = (size + first + last - dilations[axis] * (kernel - 1) - 1) // strides[axis] + 1
        places = np.arange(outputs) * strides[axis] - first + np.arange(kernel)[:, None] * dilations[axis]
        met.append(((places >= 0) & (places < size)).astype(np.int32))
    sums: NDArray[np.int32] = np.einsum("oij,ih,jw->ohw", weight.astype(np.int32), *met)
    return sums
