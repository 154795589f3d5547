"""Windows over images: averages, maxima, root mean squares."""

from __future__ import annotations

from ._node import Channels, Node
from ._registry import writes
from .convolution import auto_pad


@writes("AVERAGE_POOL_2D")
def average_pool(node: Node) -> Channels:
    """Averages of what lies inside of the image."""
    return Channels(_pool(node, "AveragePool", node.x(0, first=True), count_include_pad=0))


@writes("MAX_POOL_2D")
def max_pool(node: Node) -> Channels:
    return Channels(_pool(node, "MaxPool", node.x(0, first=True)))


@writes("L2_POOL_2D")
def l2_pool(node: Node) -> Channels:
    x = node.x(0, first=True)
    return Channels(node.emit("Sqrt", _pool(node, "AveragePool", node.emit("Mul", x, x), count_include_pad=0)))


def _pool(node: Node, op: str, x: str, **attributes: object) -> str:
    return node.emit(
        op,
        x,
        kernel_shape=node.positive("filter_height", "filter_width"),
        strides=node.positive("stride_h", "stride_w"),
        auto_pad=auto_pad(node),
        **attributes,
    )
