"""Whose turn it is: time goes, batch by batch, to the task that is thought to gain the model most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STAY = 1.5  # turning to another task costs: it must promise this much more


@dataclass(frozen=True)
class Prospect:
    """A task that has not ended."""

    key: str
    importance: float  # call sites x latency of the default, in us
    best: float  # speed-up reached so far
    gain: float  # predicted for what was not tried, as a logarithm

    @property
    def saving_us(self) -> float:
        """Time that a run of the model is thought to save yet."""
        return self.importance / max(self.best, 1e-9) * (1.0 - math.exp(-max(0.0, self.gain)))


def next_task(prospects: Sequence[Prospect], current: str | None) -> str:
    """The key of the task whose turn it is; `current` had the last one and keeps it unless another promises more."""
    best = max(prospects, key=lambda one: one.saving_us)
    for one in prospects:
        if one.key == current and one.saving_us > 0 and one.saving_us * _STAY >= best.saving_us:
            return one.key
    return best.key
