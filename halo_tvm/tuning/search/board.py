"""What is known about the decisions of one task: which were tried, how fast they are, which are still open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np


class Board:
    """Every decision is handed out once. Speed-ups are over the default and not confirmed."""

    def __init__(
        self, default: object, space: Sequence[object], *, avoid: Iterable[object] = (), start: object | None = None
    ) -> None:
        self.default = default
        self.space = tuple(dict.fromkeys((default, *space)))
        self._at = {decision: i for i, decision in enumerate(self.space)}
        self.open = np.ones(len(self.space), dtype=bool)  # by index in `space`: not tried yet
        self._closed: set[object] = set()
        self.speedups: dict[object, float] = {}
        self.known = 0  # trials of a run that is resumed: not measured again
        # A spoiled start knows nothing of the default: it is a candidate like any other.
        self.best = default if start is None else start
        self.best_speedup = 1.0 if start is None else 0.0
        if start is None:
            self.close(default)
            self.speedups[default] = 1.0
        for decision in avoid:
            if decision != default:
                self.close(decision)

    def is_open(self, decision: object) -> bool:
        return decision not in self._closed

    def index(self, decision: object) -> int | None:
        """Where it stands in the space; a step from the best may lie outside."""
        return self._at.get(decision)

    def close(self, decision: object) -> None:
        """Not to be tried again."""
        self._closed.add(decision)
        if decision in self._at:
            self.open[self._at[decision]] = False

    def reopen(self, decision: object) -> None:
        """It was handed out and not tried."""
        self._closed.discard(decision)
        if decision in self._at:
            self.open[self._at[decision]] = True

    def measured(self, decision: object, speedup: float) -> None:
        """A candidate was timed; `wins` decides about the best."""
        self.close(decision)
        self.speedups[decision] = speedup

    def wins(self, decision: object, speedup: float) -> None:
        self.speedups[decision] = speedup
        self.best, self.best_speedup = decision, speedup

    def restate(self, speedup: float) -> None:
        """The best was measured again; where the default turns out to be faster, that stands again."""
        self.speedups[self.best] = self.best_speedup = speedup
        if self.speedups.get(self.default, 0.0) > speedup:
            self.best, self.best_speedup = self.default, self.speedups[self.default]

    def fails(self, decision: object) -> None:
        """It does not work (any more); were it the best, the next best stands."""
        self.close(decision)
        self.speedups.pop(decision, None)
        if decision == self.best:
            self.best = max(self.speedups, key=self.speedups.__getitem__, default=self.default)
            self.best_speedup = self.speedups.get(self.best, 0.0)

    @property
    def best_log(self) -> float:
        """The logarithm of the best speed-up; a start that was not measured yet counts as the default."""
        return math.log(self.best_speedup) if self.best_speedup > 0 else 0.0

    @property
    def beats_default(self) -> bool:
        return self.best != self.default and self.best_speedup > 1.0
