"""float32 matrices in the number formats of GGUF, by the integers and scales that the same scheme of ours has.

Q8_0, Q4_0 and Q4_1 are `w8g32a8g32`, `w4g32a8g32` and `w4g32m`: the grids are those of `weight_groups`, only the places
of the integers differ. So a file that is compiled at that scheme comes back as itself, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..weight_groups import group_grid, group_pack

BLOCK = 32  # neighbours along a row that share a scale


@dataclass(frozen=True)
class NumberFormat:
    """A format: its code in the file, the code of a file made of it, and the bytes of [n, k] float32 in it."""

    code: int
    file_type: int
    bits: float  # a number, with its part of the scales
    data: Callable[[np.ndarray], np.ndarray]

    @property
    def in_blocks(self) -> bool:
        return self.bits < 16


def grouped_integers(x: np.ndarray, bits: int, least: bool) -> tuple[np.ndarray, np.ndarray]:
    """Integers [n, k / 32, 32] without sign, and float16 scales (and least values) [n, k / 32, 1 + least]."""
    n, k = x.shape
    grid = group_grid(x, layout="nk", group=BLOCK, bits=bits, least=least, nr=n)
    packed = group_pack(x, grid, layout="nk", group=BLOCK, bits=bits, nr=n)[0, 0]
    rows = packed.transpose(1, 0, 2)
    if bits == 4:
        rows = np.stack([rows & 15, rows >> 4], axis=2)
    return rows.reshape(n, k // BLOCK, BLOCK), grid[:, 0].transpose(2, 1, 0)


def _blocks(scales: np.ndarray, data: np.ndarray) -> np.ndarray:
    head = np.ascontiguousarray(scales.astype("<f2")).view(np.uint8)
    return np.concatenate([head, data.view(np.uint8)], axis=2)


def _nibbles(x: np.ndarray, least: bool) -> np.ndarray:
    integers, scales = grouped_integers(x, 4, least)
    return _blocks(scales, integers[..., :16] | integers[..., 16:] << 4)


def _q8_0(x: np.ndarray) -> np.ndarray:
    integers, scales = grouped_integers(x, 8, False)
    return _blocks(scales, (integers.astype(np.int16) - 128).astype(np.int8))


FORMATS = {
    "F32": NumberFormat(0, 0, 32, lambda x: x.astype("<f4")),
    "F16": NumberFormat(1, 1, 16, lambda x: x.astype("<f2")),
    "BF16": NumberFormat(30, 32, 16, lambda x: x.astype(ml_dtypes.bfloat16).view("<u2")),
    "Q8_0": NumberFormat(8, 7, 8.5, _q8_0),
    "Q4_0": NumberFormat(2, 2, 4.5, lambda x: _nibbles(x, False)),
    "Q4_1": NumberFormat(3, 3, 5.0, lambda x: _nibbles(x, True)),
}
