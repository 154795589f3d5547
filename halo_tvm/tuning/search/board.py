"""What is known about the decisions of one task: which were tried, how fast they are, which are still open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np


class Board:
    """Every decision is handed out once. Speed-ups are over the default and not confirmed.

    Those of `full` were timed at every size, and by more than a first rung. They may become the best when it falls;
    the others' numbers are of few rounds, at other sizes, and the luckiest of many.
    """

    def __init__(
        self, default: object, space: Sequence[object], *, avoid: Iterable[object] = (), start: object | None = None
    ) -> None:
        self.default = default
        self.space = tuple(dict.fromkeys((default, *space)))
        self._at = {decision: i for i, decision in enumerate(self.space)}
        self.open = np.ones(len(self.space), dtype=bool)  # by index in `space`: not tried yet
        self._closed: set[object] = set()
        self.speedups: dict[object, float] = {}
        self.full: set[object] = set()
        self.failed: set[object] = set()
        self.known = 0  # trials of a run that is resumed: not measured again
        # A spoiled start knows nothing of the default: it is a candidate like any other.
        self.best = default if start is None else start
        self.best_speedup = 1.0 if start is None else 0.0
        if start is None:
            self.measured(default, 1.0, full=True)
        for decision in avoid:
            if decision != default:
                self.close(decision)

    def is_open(self, decision: object) -> bool:
        return decision not in self._closed

    def is_settled(self, decision: object) -> bool:
        """Whether it is known how fast it is, or that it does not work."""
        return decision in self.speedups or decision in self.failed

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

    def measured(self, decision: object, speedup: float, *, full: bool) -> None:
        """A candidate was timed; `settle` decides about the best."""
        self.close(decision)
        self.speedups[decision] = 1.0 if decision == self.default else speedup
        if full:
            self.full.add(decision)

    def settle(self, *also: object) -> None:
        """The fastest of `full` and of `also` becomes the best."""
        among = (*also, *(d for d in self.speedups if d in self.full))
        self.best = max(among, key=self.speedups.__getitem__, default=self.default)
        self.best_speedup = self.speedups.get(self.best, 0.0)

    def fails(self, decision: object) -> None:
        """It does not work (any more); were it the best, the next best stands, of `full` where that has one."""
        self.close(decision)
        self.failed.add(decision)
        self.speedups.pop(decision, None)
        self.full.discard(decision)
        if decision == self.best:
            self.settle()
            if not self.beats_default:
                self.settle(*self.speedups)

    @property
    def best_log(self) -> float:
        """The logarithm of the best speed-up; a start that was not measured yet counts as the default."""
        return math.log(self.best_speedup) if self.best_speedup > 0 else 0.0

    @property
    def beats_default(self) -> bool:
        return self.best != self.default and self.best_speedup > 1.0
