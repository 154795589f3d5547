"""Images of another size."""

from __future__ import annotations

from ._node import Channels, Node, Refused
from ._registry import writes


@writes("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(node: Node) -> Channels:
    """Places and rounding as LiteRT's kernels have them."""
    height, width = _target(node)
    aligned, centred = node.flag("align_corners"), node.flag("half_pixel_centers")
    linear = node.operator.name == "RESIZE_BILINEAR"
    places = "align_corners" if aligned else "half_pixel" if centred else "asymmetric"
    # floor((i + 0.5) * scale) of LiteRT is ONNX's (i + 0.5) * scale - 0.5, rounded with halves going up.
    rounding = "round_prefer_ceil" if aligned or centred else "floor"
    head = node.emit("Shape", node.x(0, first=True), start=0, end=2)
    sizes = node.emit("Concat", head, node.sizes([height, width]), axis=0)
    out = node.emit(
        "Resize",
        node.x(0, first=True),
        "",
        "",
        sizes,
        mode="linear" if linear else "nearest",
        coordinate_transformation_mode=places,
        nearest_mode=rounding,
    )
    return Channels(out)


def _target(node: Node) -> list[int]:
    sizes = node.integers(1, "the new height and width")
    if node.rank(0) != 4 or len(sizes) != 2 or min(sizes) < 1:
        raise Refused(f"expected images and a height and width of at least 1, found {sizes}")
    return sizes
