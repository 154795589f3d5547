"""The last word on a candidate: fresh rounds against the default, in the form that ships."""

from __future__ import annotations

from collections.abc import Sequence

from ..measure import protocol as p
from ..measure.lab import Lab
from ..statistics import median_and_interval, speedups_by_round
from .outcome import Confirmed


def confirm(
    lab: Lab,
    candidate: int,
    decision: object,
    *,
    default_us: Sequence[float],
    weights: Sequence[float],
    rounds: int,
    stage: str,
) -> Confirmed:
    """Race `candidate` of the lab's open task, which is `decision`, and the default in pairs at every size.

    Raises `Failure`: it blames the candidate where that does not work in the form that ships.
    """
    lab.final(candidate)
    pair = (p.DEFAULT_ID, candidate)
    samples = [lab.race(pair, size, rounds, us) for size, us in enumerate(default_us)]
    default, measured = (tuple(tuple(one[i]) for one in samples) for i in pair)
    by_round = speedups_by_round(default, measured, weights)
    return Confirmed(decision, default, measured, *median_and_interval(by_round), stage)
