"""Integers of a few bits, several in a byte."""

from __future__ import annotations

import numpy as np


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of `bits` bits out of bytes, the lowest bits first."""
    if bits == 8:
        return packed
    parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)
