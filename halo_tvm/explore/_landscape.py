"""Searching what was measured already: how soon an order of decisions meets a good one.

Speed-ups here are those of the fastest rounds: disturbance only adds time, and nothing is decided by them.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ..tuning.search.ranking import spearman
from ._estimates import Estimates
from ._measuring import Measured, Measurements


@dataclass(frozen=True)
class Band:
    """Best speed-up so far of many random orders, after each trial: mean, and the 10th and 90th per cent."""

    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def best_so_far(order: Sequence[Measured]) -> tuple[float, ...]:
    """The best speed-up after each trial; nothing is better than the default before something is."""
    best, curve = 1.0, []
    for row in order:
        best = max(best, row.speedup_by_fastest)
        curve.append(best)
    return tuple(curve)


def staged(measurements: Measurements, estimates: Estimates, *, ranked: int = 6) -> tuple[Measured, ...]:
    """An order as the tuner's stages have it: the best predicted first, then steps of one field from the best so far.

    A replay: only decisions that were measured are taken, what neither stage asks for comes last.
    """
    left = list(measurements.rows[1:])
    place = {row.decision: i for i, row in enumerate(estimates)}
    left.sort(key=lambda row: place[row.decision])
    order, left = left[:ranked], left[ranked:]
    while left:
        best = max([measurements.default, *order], key=lambda row: row.speedup_by_fastest)
        step = next((row for row in left if _distance(row.decision, best.decision) == 1), left[0])
        left.remove(step)
        order.append(step)
    return tuple(order)


def at_random(measurements: Measurements, *, orders: int = 300, seed: int = 0) -> Band:
    """The same decisions in random orders."""
    rng, rows = random.Random(seed), list(measurements.rows[1:])
    curves = []
    for _ in range(orders):
        rng.shuffle(rows)
        curves.append(best_so_far(rows))
    columns = [sorted(column) for column in zip(*curves)]
    at = [int(share * (orders - 1)) for share in (0.1, 0.9)]
    low, high = (tuple(column[i] for column in columns) for i in at)
    return Band(tuple(mean(column) for column in columns), low, high)


def rank_correlation(measurements: Measurements, estimates: Estimates) -> float:
    """Spearman's: 1 when predictions put the decisions in the measured order, 0 when they say nothing."""
    rows = measurements.timed
    predicted = [-estimates.of(row.decision).score for row in rows]
    return spearman(predicted, [row.speedup_by_fastest for row in rows]) or 0.0


def _distance(a: object, b: object) -> int:
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in dataclasses.fields(a))
