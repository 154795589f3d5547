"""Images [n, h, w, c] brought to another size where tf2onnx has another rule than TensorFlow, or none.

ResizeNearestNeighbor   Resize in a way that ONNX has: halves go up. tf2onnx asks for one that ONNX dropped, or for
                        halves that go down
ResizeBilinear,         floats of any image, and the kernel that TensorFlow means: -0.75 in a clamped image, or -0.5
ResizeBicubic           with the weights outside left out where pixels have a middle. tf2onnx keeps integers, and takes
                        -0.5 always
ResizeArea              means over what a pixel covers, as a product with each axis' shares. tf2onnx takes the nearest
ScaleAndTranslate       the kernels of tf.image.resize, antialiased or not, as products with each axis' weights
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._replaced import Handler, Replaced

_Array = NDArray[np.float64]


def _nearest(place: Replaced) -> str:
    """Of floor((i + 0.5) * scale), round(i * scale) or floor(i * scale)."""
    x, size = place.inputs
    if place.attr("align_corners"):
        way, rounding = "align_corners", "round_prefer_ceil"
    elif place.attr("half_pixel_centers"):
        way, rounding = "half_pixel", "round_prefer_ceil"
    else:
        way, rounding = "asymmetric", "floor"
    return _resized(place, x, size, way, nearest_mode=rounding, mode="nearest")


def _smooth(place: Replaced, **options: Any) -> str:
    x, size = place.inputs
    ways = {"align_corners": place.attr("align_corners"), "half_pixel": place.attr("half_pixel_centers")}
    way = next((name for name, is_it in ways.items() if is_it), "asymmetric")
    return _resized(place, place.cast(x, np.float32), size, way, **options)


def _resized(place: Replaced, x: str, size: str, way: str, **options: Any) -> str:
    start, end = place.sizes(x, 0, 1), place.sizes(x, 3, 4)
    sizes = place.emit("Concat", start, place.cast(size, np.int64), end, axis=0)
    return place.emit("Resize", x, "", "", sizes, coordinate_transformation_mode=way, **options)


def _bicubic(place: Replaced) -> str:
    if place.attr("half_pixel_centers"):
        return _smooth(place, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
    return _smooth(place, mode="cubic", cubic_coeff_a=-0.75)


def _area(place: Replaced) -> str:
    x, size = place.inputs
    out = place.cast(x, np.float32)
    for axis in (1, 2):
        wanted = place.emit("Gather", place.cast(size, np.int64), place.const(axis - 1), axis=0)
        out = _weighted(place, out, _shares(place, x, axis, wanted), axis)
    return out


def _shares(place: Replaced, x: str, axis: int, wanted: str) -> str:
    """[wanted, size]: the part of each result that each element along `axis` makes up."""
    shape = place.sizes(x, axis, axis + 1)
    size = place.emit("Squeeze", shape, place.const([0]))
    zero, one, unit = place.const(0), place.const(1), place.const(1, np.float32)
    position = place.cast(place.emit("Range", zero, size, one), np.float32)
    result = place.emit("Unsqueeze", place.cast(place.emit("Range", zero, wanted, one), np.float32), place.const([1]))
    spans = [size, wanted]
    if place.attr("align_corners"):
        spans = [place.emit("Max", place.emit("Sub", span, one), one) for span in spans]
    scale = place.emit("Div", place.cast(spans[0], np.float32), place.cast(spans[1], np.float32))
    begin = place.emit("Mul", result, scale)
    end = place.emit("Mul", place.emit("Add", result, unit), scale)
    # What is covered beyond the last element counts as that.
    is_last = place.emit("Equal", place.emit("Range", zero, size, one), place.emit("Sub", size, one))
    behind = place.emit("Where", is_last, place.const(3e38, np.float32), place.emit("Add", position, unit))
    covered = place.emit("Sub", place.emit("Min", behind, end), place.emit("Max", position, begin))
    return place.emit("Div", place.emit("Max", covered, place.const(0, np.float32)), scale)


def _weighted(place: Replaced, x: str, weights: str, axis: int) -> str:
    """x[n, h, w, c] whose `axis` 1 or 2 is multiplied by weights[out, in]."""
    terms = ("oh,nhwc->nowc", "ow,nhwc->nhoc")
    return place.emit("Einsum", weights, x, equation=terms[axis - 1])


def _cubic(x: _Array, near: tuple[float, ...], far: tuple[float, ...]) -> _Array:
    values: _Array = np.where(x < 1, np.polyval(near, x), np.where(x < 2, np.polyval(far, x), 0))
    return values


def _sinc(x: _Array, radius: int) -> _Array:
    values: _Array = np.where(x > radius, 0, np.sinc(x) * np.sinc(x / radius))
    return values


_KERNELS: dict[str, tuple[float, Callable[[_Array], _Array]]] = {  # how far each reaches, and its value at a distance
    "lanczos1": (1, lambda x: _sinc(x, 1)),
    "lanczos3": (3, lambda x: _sinc(x, 3)),
    "lanczos5": (5, lambda x: _sinc(x, 5)),
    "gaussian": (1.5, lambda x: np.where(x < 1.5, np.exp(-2 * x * x), 0)),  # a third of the reach deviates
    "box": (1, lambda x: np.where(x < 0.5, 1.0, np.where(x == 0.5, 0.5, 0.0))),
    "triangle": (1, lambda x: np.maximum(1 - x, 0)),
    "keyscubic": (2, lambda x: _cubic(x, (1.5, -2.5, 0, 1), (-0.5, 2.5, -4, 2))),
    "mitchellcubic": (2, lambda x: _cubic(x, (7 / 6, -2, 0, 8 / 9), (-7 / 18, 2, -10 / 3, 16 / 9))),
}


def _scaled(place: Replaced) -> str:
    x = place.inputs[0]
    shape, known = place.shape(x), [place.known(name) for name in place.inputs[1:]]
    if shape is None or min(shape[1:3]) < 0 or any(value is None for value in known):
        raise ValueError("expected ScaleAndTranslate between known sizes, found open ones")
    size, scale, shift = (value for value in known if value is not None)
    kernel = place.attr("kernel_type")
    reach, function = _KERNELS[kernel.decode() if isinstance(kernel, bytes) else str(kernel)]
    out = place.cast(x, np.float32)
    for axis in (0, 1):
        distance, inside = _distances(
            shape[axis + 1], int(size[axis]), scale[axis], shift[axis], place.attr("antialias")
        )
        weights = np.where(distance <= reach, function(distance.astype(np.float64)), 0)
        total = weights.sum(1, keepdims=True)
        weights = np.where(inside & (total != 0), weights / np.where(total == 0, 1, total), 0)
        out = _weighted(place, out, place.const(weights, np.float32), axis + 1)
    return out


def _distances(
    given: int, wanted: int, scale: float, shift: float, antialias: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """[wanted, given], in units of the kernel, and [wanted, 1], whether a result's place lies inside.

    In float32, as TensorFlow has it: a kernel may end between two numbers that only their rounding tells apart.
    """
    one, half = np.float32(1), np.float32(0.5)
    inverse = one / np.float32(scale)
    place = (np.arange(wanted, dtype=np.float32)[:, None] + half) * inverse - inverse * np.float32(shift)
    wide = max(inverse, one) if antialias else one
    distance = np.abs((np.arange(given, dtype=np.float32) + half - place) * (one / wide))
    return distance, (place >= 0) & (place <= given)


HANDLERS: dict[str, Handler] = {
    "ResizeNearestNeighbor": _nearest,
    "ResizeBilinear": lambda place: _smooth(place, mode="linear"),
    "ResizeBicubic": _bicubic,
    "ResizeArea": _area,
    "ScaleAndTranslate": _scaled,
}
