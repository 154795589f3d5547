"""Attributes of sliding windows, as ONNX spells them: kernel_shape, strides, dilations, pads, auto_pad."""

from __future__ import annotations

from collections.abc import Sequence

from ..meaning.windows import Window
from ._node import Node

_SAME = {"SAME_UPPER": "upper", "SAME_LOWER": "lower"}


def window_of(node: Node, kernel: Sequence[int], rank: int) -> Window:
    """The window of `node` over `rank` spatial axes."""
    node.refuse_unless(len(kernel) == rank, f"expected {rank} kernel_shape, found {len(kernel)}")
    auto = node.attr("auto_pad", "NOTSET") or "NOTSET"
    node.refuse_unless(
        auto in ("NOTSET", "VALID", *_SAME),
        f"expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {auto}",
    )
    none = [0] * 2 * rank
    return Window(
        tuple(kernel),
        tuple(node.attr("strides", [1] * rank)),
        tuple(node.attr("dilations", [1] * rank)),
        tuple(node.attr("pads", none) if auto == "NOTSET" else none),
        _SAME.get(auto, ""),
    ).checked(node)
