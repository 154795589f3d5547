"""The grid that numbers lie on already: a file's integers, found again in the float32 that was made of them.

Shapes
    parts [groups, group, n] float32   ->   on [groups, n] bool, scale and least [groups, n] float16
Computation
    of each group and column the least difference of two of its numbers (and of 0, without least values), or a part of
    that, as step; the group is `on` where all its numbers are whole steps from the least one (from 0), no more of them
    than the integers reach
Numerics
    float32; numbers may lie a thousandth of a step beside the grid, which float16 scales and their products do
A weight that was never quantised is found out by a few of its columns: no two numbers of a group are alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_REACH = 15  # steps between the extremes of a group, and without least values to each side of 0 at eight bits
_BESIDE = np.float32(1e-3)
_PARTS = 5  # of the least difference, when no two of a group's integers are neighbours
_BLOCK = 1 << 18  # numbers at once
_PROBED = 16  # groups and columns


@dataclass(frozen=True)
class StoredGrid:
    """Where groups lie on a grid, its scale and (zeros without one) its least value."""

    on: np.ndarray
    scale: np.ndarray
    least: np.ndarray


def stored_grid(parts: np.ndarray, bits: int, *, least: bool) -> StoredGrid:
    """The grids of `parts` for integers of so many bits; see the module."""
    groups, group, n = parts.shape
    found = StoredGrid(
        np.zeros((groups, n), bool), np.zeros((groups, n), np.float16), np.zeros((groups, n), np.float16)
    )
    if not _repeats(parts):
        return found
    wide = max(1, _BLOCK // (groups * group))
    for begin in range(0, n, wide):
        columns = np.s_[:, begin : begin + wide]
        block = np.ascontiguousarray(parts[:, :, begin : begin + wide].swapaxes(1, 2))  # [groups, columns, group]
        with np.errstate(all="ignore"):
            scale, start, on = _steps(block, bits, least)
        found.on[columns], found.scale[columns], found.least[columns] = on, scale, start
    return found


def _repeats(parts: np.ndarray) -> bool:
    """Whether most groups of a sample have fewer different numbers than a grid has integers."""
    groups, group, n = parts.shape
    if group <= _REACH + 1:
        return False
    some = parts[:: max(1, groups // _PROBED), :, :: max(1, n // _PROBED)]
    distinct = 1 + (np.diff(np.sort(some, axis=1), axis=1) > 0).sum(1)
    return bool((distinct <= _REACH + 1).mean() > 0.5)


def _steps(block: np.ndarray, bits: int, least: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale, least value and whether they hold, [groups, columns] each, of numbers [groups, columns, group]."""
    ordered = np.sort(block if least else np.pad(block, ((0, 0), (0, 0), (0, 1))), axis=-1)
    apart = np.diff(ordered, axis=-1)
    gap = np.where(apart > 0, apart, np.float32(np.inf)).min(-1)
    low = ordered[..., 0] if least else np.zeros_like(gap)
    furthest = ordered[..., -1] - low if least else np.maximum(ordered[..., -1], -ordered[..., 0])
    usable = np.isfinite(gap) & np.isfinite(furthest)
    on, step = np.zeros(gap.shape, bool), np.zeros_like(gap)
    for part in range(1, _PARTS + 1):
        count = np.rint(furthest * part / gap)  # whole steps to the furthest number: many, so the best measure of one
        tried = furthest / count
        open_ = usable & ~on & (count <= _REACH)
        if not open_.any():
            break
        places = (block - low[..., None]) / tried[..., None]
        near = np.abs(places - np.rint(places)).max(-1) < _BESIDE
        here = open_ & near
        if not least and bits == 4:  # integers from -8 to 7, the scale of either sign
            up, down = np.rint(places.max(-1)), np.rint(-places.min(-1))
            here &= (np.maximum(up, down) <= 8) & (np.minimum(up, down) <= 7)
            tried = np.where(up == 8, -tried, tried)
        step, on = np.where(here, tried, step), on | here
    scale, start = step.astype(np.float16), low.astype(np.float16)
    return scale, start, on & (scale != 0) & np.isfinite(scale) & np.isfinite(start)
