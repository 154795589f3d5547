"""Weights as integers of eight or four bits in groups along k: their scales, least values and packing, as recipes.

A group of `group` neighbours along k of one column has a scale and, with `least`, a least value, both float16.
    8 bits           w = (q - 128) * scale,   q in 1..255,  scale = largest magnitude / 127
    4 bits           w = (q - 8) * scale,     q in 0..15,   scale = -(number of largest magnitude) / 8, of either sign
    4 bits, least    w = q * scale + least,   q in 0..15,   scale = (largest - least) / 15
Those are the grids of GGUF's Q8_0, Q4_0 and Q4_1, and those of GPTQ and AWQ, whose least value is whole steps from 0.
Numbers that lie on one come back as its integers and scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import UsageError
from .scale_search import searched
from .stored_grid import stored_grid

GROUPS = (128, 64, 32)  # of the schemes, along k
ZERO = {8: 128, 4: 8}  # the integer that means 0, where there is no least value
TINY = np.float32(2.0**-24)  # the least float16 above 0: a smaller scale is none
_LEAST_SCALE = 2.0**-19  # of a weight's largest group: float16 rounds it by 1.6 %, and smaller ones by more


@dataclass(frozen=True)
class Grid:
    """What numbers lie on: integers of so many bits times a scale, one of each for `group` neighbours along k."""

    bits: int
    group: int
    least: bool  # a least value, or a zero point, beside each scale


def dividing_group(k: int, most: int = GROUPS[0]) -> int | None:
    """The largest group, up to `most`, that divides `k`; None where none does."""
    return next((group for group in GROUPS if group <= most and k % group == 0), None)


def _groups(weight: np.ndarray, layout: str, group: int) -> np.ndarray:
    """float32 [k / group, group, n] of a weight in `layout` ("kn" or "nk")."""
    kn = weight if layout == "kn" else weight.T
    return kn.reshape(kn.shape[0] // group, group, kn.shape[1])


def group_grid(
    weight: np.ndarray,
    squares: np.ndarray | None = None,
    *,
    layout: str,
    group: int,
    bits: int,
    least: bool,
    nr: int,
    search: bool = False,
) -> np.ndarray:
    """Scales, and least values behind them, in float16: [1 + least, ceil(n / nr), k / group, nr].

    Numbers that lie on a grid keep it (`stored_grid`). Of others the extremes of a group are rounded, or `search`ed
    from there (`scale_search`), beside the mean squares [k] of what the weight is multiplied with. NaN where a group is
    not finite; `UsageError` where float16 is too narrow.
    """
    parts = _groups(weight, layout, group)
    low, high = parts.min(1), parts.max(1)
    with np.errstate(all="ignore"):
        if least:
            scale = (high - low) / np.float32(15)
        elif bits == 8:
            scale = np.maximum(high, -low) / np.float32(127)
        else:
            scale = np.where(high > -low, high, low) / np.float32(-8)
        finite = np.isfinite(low) & np.isfinite(high)
        stored = stored_grid(parts, bits, least=least)
        if not stored.on.all():
            _check_range(np.abs(scale[finite]), np.abs(low[finite]) if least else None)
        scale, lows = scale.astype(np.float16), low.astype(np.float16) if least else None
        kept = np.isfinite(scale) & finite
    scale = np.where(kept, scale, np.float16(np.nan))
    if search and not stored.on.all():
        importance = None if squares is None else squares.reshape(parts.shape[:2])
        scale, lows = searched(parts, importance, scale, lows)
    scale = np.where(stored.on, stored.scale, scale)
    lows = None if lows is None else np.where(stored.on, stored.least, lows)
    return np.stack([_panels(values, nr) for values in (scale, lows) if values is not None])


def _check_range(scales: np.ndarray, lows: np.ndarray | None) -> None:
    """`UsageError` for a weight whose scales or least values float16 does not hold."""
    most = float(np.finfo(np.float16).max)
    largest = float(scales.max(initial=0.0))
    beyond = max(largest, 0.0 if lows is None else float(lows.max(initial=0.0)))
    if beyond > most or 0 < largest < _LEAST_SCALE:
        found = beyond if beyond > most else largest
        raise UsageError(
            f"expected a weight in groups whose largest scale lies in {_LEAST_SCALE:.1e} to {most:g}, the range of "
            f'float16, found {found:.3g}: choose scheme = "w8a8" in [passes.quantise] of halo.toml, or skip its linear'
        )


def group_pack(weight: np.ndarray, grid: np.ndarray, *, layout: str, group: int, bits: int, nr: int) -> np.ndarray:
    """The integers on a grid of `group_grid` in steps of 32 bits a column.

    uint8 [1, ceil(n / nr), k / (32 / bits), nr, 4]
    8 bits: four neighbours along k in the four bytes. 4 bits: eight, the first four in the low halves of the bytes.
    Groups whose scale is 0 or NaN, and columns behind the last, are the integer of 0 everywhere.
    """
    parts = _groups(weight, layout, group)
    groups, _, n = parts.shape
    scale, least = grid[0], grid[1] if len(grid) > 1 else None
    zero = np.float32(ZERO[bits]) if least is None else np.float32(0)
    panels = scale.shape[0]
    out = np.full((panels, groups * group, nr), int(zero), np.uint8)
    low, high = (1, 255) if bits == 8 else (0, 15)
    for panel in range(panels):
        columns = slice(panel * nr, min((panel + 1) * nr, n))
        width = columns.stop - columns.start
        step = scale[panel, :, None, :width].astype(np.float32)
        usable = np.isfinite(step) & (np.abs(step) >= TINY)
        start = np.float32(0) if least is None else least[panel, :, None, :width].astype(np.float32)
        with np.errstate(all="ignore"):
            found = np.rint((parts[:, :, columns] - start) / np.where(usable, step, np.float32(1))) + zero
        found = np.clip(np.where(usable & np.isfinite(found), found, zero), low, high)
        out[panel, :, :width] = found.reshape(groups * group, width)
    if bits == 4:
        halves = out.reshape(panels, -1, 2, 4, nr)
        out = halves[:, :, 0] | halves[:, :, 1] << 4
    return out.reshape(panels, -1, 4, nr).swapaxes(2, 3)[None]


def _panels(values: np.ndarray, nr: int) -> np.ndarray:
    """[k / group, n] -> [ceil(n / nr), k / group, nr]; columns behind the last are zero."""
    groups, n = values.shape
    panels = -(-n // nr)
    whole = np.zeros((groups, panels * nr), values.dtype)
    whole[:, :n] = values
    return whole.reshape(groups, panels, nr).swapaxes(0, 1)


def unpacked(
    integers: np.ndarray, scale: np.ndarray, least: np.ndarray | None = None, *, bits: int, n: int
) -> np.ndarray:
    """The weight [k, n] that packed integers stand for, in float64."""
    _, panels, steps, nr, _ = integers.shape
    rows = integers[0].swapaxes(2, 3)[:, :, None]
    if bits == 4:
        rows = np.concatenate([rows & 15, rows >> 4], axis=2)
    numbers = rows.reshape(panels, scale.shape[1], -1, nr).astype(np.float64)
    start = -ZERO[bits] * scale.astype(np.float64) if least is None else least.astype(np.float64)
    whole: np.ndarray = numbers * scale.astype(np.float64)[:, :, None] + start[:, :, None]
    return whole.reshape(panels, -1, nr).swapaxes(0, 1).reshape(-1, panels * nr)[:, :n]
