"""Which convolutions take less time by minimal filtering (`halo_tvm.winograd`), by counting what each way does.

A tile of 4 x 4 results takes 36 products instead of 144; its input and its results are transformed, and 36 factors are
read in the place of 9 elements of a kernel. Along one axis it is 6 instead of 12, and 6 in the place of 3. Large images
gain most, up to three times; of small images with many channels the time is that of reading weights, and they lose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir

from ..dimensions import size_of
from ..targets import Target
from ..winograd import KERNEL, RESULTS, TILE

# In multiply-adds of one number, measured with two cores: docs/kernels/convolution.md.
_INPUT, _RESULT = {2: 220, 1: 30}, {2: 250, 1: 40}  # by axes: to transform a channel of a tile, and of its results
_BYTE = 5.6  # to read a byte of weights that lies in no cache
_GAIN = 0.8  # of the time, at most


def axes_in_tiles(
    weight: Sequence[int],
    attrs: Mapping[str, Any],
    batch: ir.Expr,
    places: Sequence[ir.Expr],
    typical: Mapping[str, int],
    target: Target,
) -> int:
    """Along how many of its last axes a convolution is computed so: 2, 1, or 0 where another way is faster.

    `weight`: [m, c, *kernel]; `places`: of the results, along each axis.
    """
    m, c, *kernel = weight
    sizes = [size_of(size, typical) for size in (batch, *places)]
    direct = _of_products(math.prod(kernel) * c * m, math.prod(sizes))
    if attrs["groups"] != 1 or min(m, c) < target.lanes_f32:
        return 0
    for axes in (2, 1):
        front = len(kernel) - axes
        if front < 0 or any(
            tuple(values[front : len(kernel)]) != (ones,) * axes
            for values, ones in ((kernel, KERNEL), (attrs["strides"], 1), (attrs["dilations"], 1))
        ):
            continue
        tiles = math.prod(sizes[: 1 + front]) * math.prod(-(-size // RESULTS) for size in sizes[1 + front :])
        taps = math.prod(kernel[:front])
        moved = tiles * (_INPUT[axes] * taps * c + _RESULT[axes] * m)
        if _of_products(TILE**axes * taps * c * m, tiles) + moved <= _GAIN * direct:
            return axes
    return 0


def _of_products(weights: int, rows: int) -> float:
    """Of `rows` times a matrix of so many numbers, which are read once."""
    return weights * (rows + 4 * _BYTE)
