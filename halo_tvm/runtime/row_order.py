"""Rows that a model orders by a score: two right results may hold rows of nearly equal scores in either order.

A detector's boxes, scores and labels are such rows; a last row may be chosen of several that are as good. What moves
must be among rows whose scores, which run one way in the reference, are no further apart than their bound, and each
row must be one of the reference's, column by column within the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_MOST_NUMBERS = 1 << 24  # logits of a long sequence are more, and no rows of a detector
_MOST_MOVED = 1000  # rows that are looked for among each other
_LEAST_KEPT = 10  # rows for each one that another took the place of


def in_order_of(
    outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], bounds: Sequence[float]
) -> list[np.ndarray] | None:
    """`outputs` with their rows in the order of `expected`; None where other things differ, or none is a score.

    Outputs of one case, with the largest absolute error of each that is no fault. Rows are along the first axis that is
    not one; outputs with other numbers of rows stay as they are.
    """
    counts = [_rows_of(e) for e in expected]
    for count in dict.fromkeys(counts):
        which = [i for i, c in enumerate(counts) if c == count]
        if count < 2 or sum(expected[i].size for i in which) > _MOST_NUMBERS:
            continue
        if all(_is_near(outputs[i], expected[i], bounds[i]).all() for i in which):
            continue
        units = [np.full(expected[i].size // count, max(bounds[i], 1e-30)) for i in which]
        unit = np.concatenate(units)
        found, wanted = (_table([arrays[i] for i in which], count) / unit for arrays in (outputs, expected))
        of_floats = np.concatenate([np.full(len(u), expected[i].dtype.kind == "f") for i, u in zip(which, units)])
        order = _order(found, wanted, of_floats)
        if order is None:
            return None
        moved = list(outputs)
        for i in which:
            rows = outputs[i].reshape(count, -1)
            taken = [rows[at] if at >= 0 else expected[i].reshape(count, -1)[row] for row, at in enumerate(order)]
            moved[i] = np.stack(taken).reshape(outputs[i].shape).astype(outputs[i].dtype)
        return moved
    return None


def _rows_of(array: np.ndarray) -> int:
    return next((size for size in array.shape if size != 1), 0)


def _is_near(a: np.ndarray, b: np.ndarray, bound: float) -> np.ndarray:
    return np.abs(a.astype(np.float64) - b.astype(np.float64)) <= bound


def _table(arrays: Sequence[np.ndarray], count: int) -> np.ndarray:
    return np.concatenate([a.reshape(count, -1).astype(np.float64) for a in arrays], 1)


def _order(found: np.ndarray, wanted: np.ndarray, of_floats: np.ndarray) -> np.ndarray | None:
    """For each wanted row the found one that it is, -1 for one that another took the place of; in units of bounds."""
    order = np.arange(len(wanted))
    away = np.flatnonzero(~(np.abs(found - wanted) <= 1).all(1))
    if len(away) > _MOST_MOVED:
        return None
    left = list(away)
    for row in away:
        distance = np.abs(found[left] - wanted[row]).max(1) if left else np.empty(0)
        near = int(distance.argmin()) if len(distance) and np.isfinite(distance).any() else -1
        order[row] = left.pop(near) if near >= 0 and distance[near] <= 1 else -1
    lost = np.flatnonzero(order < 0)
    if len(lost) * _LEAST_KEPT > len(order):
        return None
    steps = np.diff(wanted, axis=0)
    for score in np.flatnonzero(of_floats & ((steps <= 0).all(0) | (steps >= 0).all(0)) & (steps != 0).any(0)):
        scores = wanted[:, score]
        moved = np.flatnonzero((order >= 0) & (order != np.arange(len(order))))
        apart = np.abs(scores[moved] - scores[order[moved]])
        at_the_end = np.abs(np.concatenate([scores[lost], found[left, score]]) - scores[-1])
        if (apart <= 1).all() and (at_the_end <= 1).all():
            return order
    return None
