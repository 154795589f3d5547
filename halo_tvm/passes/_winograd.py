"""Which convolutions take less time by minimal filtering (`halo_tvm.winograd`), by counting what each way does.

A tile of 4 x 4 results takes 36 products instead of 144; its input and its results are transformed, and 36 factors are
read in the place of 9 elements of a kernel. Along one axis it is 6 instead of 12, and 6 in the place of 3. Large images
gain most, up to three times; of small images with many channels the time is that of reading weights, and they lose.
Bytes have tiles of 2 x 2 results: 16 products instead of 36, and 16 factors of two bytes in the place of 9.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir

from ..dimensions import size_of
from ..targets import Target
from ..winograd import FLOATS, INTEGERS, KERNEL, Filtering


@dataclass(frozen=True)
class _Costs:
    """In multiply-adds of one number, measured with two cores: docs/kernels/convolution.md."""

    input: Mapping[int, int]  # by axes: to transform a channel of a tile
    result: Mapping[int, int]  # to transform a channel of its results
    element: float  # to read an element of the direct way's weights that lies in no cache
    factor: float  # to read a factor
    gain: float  # of the time, at most
    channels: int  # of x that a product takes at once


_WRITTEN = 15  # multiply-adds in the time of writing an element of a matrix of windows
_COSTS = {
    FLOATS: _Costs({2: 220, 1: 30}, {2: 250, 1: 40}, element=22.4, factor=22.4, gain=0.8, channels=1),
    INTEGERS: _Costs({2: 90, 1: 25}, {2: 90, 1: 25}, element=8, factor=16, gain=0.85, channels=2),
}


def axes_in_tiles(
    filtering: Filtering,
    weight: Sequence[int],
    attrs: Mapping[str, Any],
    batch: ir.Expr,
    places: Sequence[ir.Expr],
    typical: Mapping[str, int],
    target: Target,
    rate: float = 1.0,
    as_matrix: bool = False,
) -> int:
    """Along how many of its last axes a convolution is computed so: 2, 1, or 0 where another way is faster.

    `weight`: [m, c, *kernel]; `places`: of the results, along each axis. The other way multiplies `rate` times as fast,
    reading through windows, or with `as_matrix` what is written out of them.
    """
    m, c, *kernel = weight
    costs, sizes = _COSTS[filtering], [size_of(size, typical) for size in (batch, *places)]
    direct = math.prod(kernel) * c * m * (math.prod(sizes) + costs.element) / rate
    if as_matrix:
        direct += math.prod(kernel) * c * math.prod(sizes) * _WRITTEN
    if attrs.get("groups", 1) != 1 or min(m, c // costs.channels) < target.lanes_f32:
        return 0
    for axes in (2, 1):
        front = len(kernel) - axes
        if front < 0 or any(
            tuple(values[front : len(kernel)]) != (ones,) * axes
            for values, ones in ((kernel, KERNEL), (attrs["strides"], 1), (attrs["dilations"], 1))
        ):
            continue
        tiles = math.prod(sizes[: 1 + front])
        tiles *= math.prod(-(-size // filtering.results) for size in sizes[1 + front :])
        taps = math.prod(kernel[:front])
        moved = tiles * (costs.input[axes] * taps * c + costs.result[axes] * m)
        products = filtering.tile**axes * taps * c * m * (tiles + costs.factor)
        if products + moved <= costs.gain * direct:
            return axes
    return 0
