"""ExtractImagePatches: the elements of each window [kh, kw, c] of [n, h, w, c] in one row, of a batch of open size.

tf2onnx folds batch and channels, which leaves no open size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._replaced import Handler, Replaced


def _patches(place: Replaced) -> str:
    (x,) = place.inputs
    shape = place.shape(x)
    if shape is None or shape[3] < 0:
        raise ValueError("expected ExtractImagePatches of a known number of channels, found an open one")
    (_, *sizes, _), (_, *strides, _), (_, *rates, _) = (place.attr(name) for name in ("ksizes", "strides", "rates"))
    padding = place.attr("padding")
    valid = (padding.decode() if isinstance(padding, bytes) else str(padding)) == "VALID"
    if valid and strides == sizes and rates == [1, 1] and min(shape[1:3]) > 0:
        return _side_by_side(place, x, shape, sizes)
    return _overlapping(place, x, shape[3], sizes, {"strides": strides, "dilations": rates}, valid)


def _side_by_side(place: Replaced, x: str, shape: list[int], sizes: list[int]) -> str:
    """Windows that share nothing: only the order of elements changes."""
    (h, w), (kh, kw), c = shape[1:3], sizes, shape[3]
    rows, columns = h // kh, w // kw
    if (rows * kh, columns * kw) != (h, w):
        ends, axes = place.const([rows * kh, columns * kw]), place.const([1, 2])
        x = place.emit("Slice", x, place.const([0, 0]), ends, axes)
    split = place.emit("Reshape", x, place.const([-1, rows, kh, columns, kw, c]))
    ordered = place.emit("Transpose", split, perm=[0, 1, 3, 2, 4, 5])
    return place.emit("Reshape", ordered, place.const([-1, rows, columns, kh * kw * c]))


def _overlapping(place: Replaced, x: str, channels: int, sizes: list[int], window: dict[str, Any], valid: bool) -> str:
    """A convolution of each channel by kernels that hold a single one."""
    given = place.dtype(x)
    dtype = np.dtype(np.float64 if given == np.float64 or given.itemsize >= 4 and given.kind in "iu" else np.float32)
    count = int(np.prod(sizes))
    kernel = place.const(np.tile(np.eye(count), (channels, 1)).reshape(-1, 1, *sizes), dtype)
    first = place.emit("Transpose", place.cast(x, dtype), perm=[0, 3, 1, 2])
    padding = {"auto_pad": "VALID" if valid else "SAME_UPPER"}
    found = place.emit("Conv", first, kernel, group=channels, kernel_shape=sizes, **window, **padding)
    order = np.arange(channels * count).reshape(channels, count).T.reshape(-1)
    return place.cast(
        place.emit("Transpose", place.emit("Gather", found, place.const(order), axis=1), perm=[0, 2, 3, 1]), given
    )


HANDLERS: dict[str, Handler] = {"ExtractImagePatches": _patches}
