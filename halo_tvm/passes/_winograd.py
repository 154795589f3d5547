"""Which convolutions take less time by minimal filtering (`halo_tvm.winograd`), by counting what each way does.

A tile of 4 x 4 results takes 36 products instead of 144; its input and its results are transformed, and 36 factors are
read in the place of 9 elements of a kernel. Large images gain most, up to three times; of small images with many
channels the time is that of reading weights, and they lose.
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
_INPUT, _RESULT = 220, 250  # to transform a channel of the input of a tile, and of its results
_BYTE = 5.6  # to read a byte of weights that lies in no cache
_GAIN = 0.8  # of the time, at most


def pays(
    weight: Sequence[int],
    attrs: Mapping[str, Any],
    batch: ir.Expr,
    places: Sequence[ir.Expr],
    typical: Mapping[str, int],
    target: Target,
) -> bool:
    """Whether a convolution with `weight` [m, c, *kernel] that gives `places` along each axis is faster this way."""
    m, c, *kernel = weight
    rank = len(kernel)
    plain = rank >= 2 and all(tuple(attrs[name][rank - 2 : rank]) == (1, 1) for name in ("strides", "dilations"))
    if not plain or attrs["groups"] != 1 or kernel[-2:] != [KERNEL, KERNEL] or min(m, c) < target.lanes_f32:
        return False
    outer = math.prod(size_of(size, typical) for size in (batch, *places[:-2]))
    rows, columns = (size_of(size, typical) for size in places[-2:])
    tiles = outer * -(-rows // RESULTS) * -(-columns // RESULTS)
    taps = math.prod(kernel[:-2])
    each = taps * c * m  # products of one factor, or of one element of the kernel
    direct = KERNEL**2 * each * (outer * rows * columns + 4 * _BYTE)
    tiled = TILE**2 * each * (tiles + 4 * _BYTE) + tiles * (_INPUT * taps * c + _RESULT * m)
    return tiled <= _GAIN * direct
