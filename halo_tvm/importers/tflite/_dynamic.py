"""Float activations by weights in 8 or 4 bits (dynamic range): rows are rounded at run time, products are integer.

q = round(x / s), s = max |x| / 127 over a row of a matrix, or over an image      x @ w = (q @ integers) * s * scales
LiteRT rounds the same rows, by its reference kernels on this grid, by XNNPACK on one with a zero point.
"""

from __future__ import annotations

import numpy as np

from ._node import Node

_ERROR = 0.05  # of the largest output: LiteRT rounds on another grid, and neither is the float model
_LEAST = 1e-30  # of a scale: a row of zeros has none


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
    """Let results be as far off as LiteRT's are, which rounds the rows that meet such weights."""
    node.graph.writer.accept(_ERROR)


def rounded(node: Node, x: str, axes: list[int]) -> tuple[str, str]:
    """`x` as int8 on a grid of its own for each slice over `axes`, and the scales, which broadcast to `x`."""
    accept(node)
    largest = node.emit("ReduceMax", node.emit("Abs", x), node.sizes(axes), keepdims=1)
    scale = node.emit("Div", largest, node.const(127, np.float32))
    scale = node.emit("Max", scale, node.const(_LEAST, np.float32))
    return node.emit("Cast", node.emit("Round", node.emit("Div", x, scale)), to=3), scale


def restored(node: Node, total: str, scale: str, trailing: int) -> str:
    """Sums of products in int32 as floats; the weight's scales run along a dimension with `trailing` ones behind it."""
    grid = node.tensor(1).grid
    assert grid is not None, "asked of weights on a grid only"
    scales = grid.scales.astype(np.float32)
    scales = scales.reshape(()) if scales.size == 1 else scales.reshape(-1, *[1] * trailing)
    floats = node.emit("Mul", node.emit("Cast", total, to=1), scale)
    return node.emit("Mul", floats, node.graph.constant(scales))
