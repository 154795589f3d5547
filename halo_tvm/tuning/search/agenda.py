"""The stages of a search in turn: which is next, what is still to be gained, and when there is nothing left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from .board import Board
from .descent import Descent
from .efforts import DESCENT, RANKED, Effort
from .outcome import NO_STAGE, NO_STEP, PATIENCE, SMALL_GAIN, SPACE
from .ranked import Ranked
from .ranking import Ranking

LEAST_GAIN = 0.01
AT_ROOFLINE = 1.03
UNTESTED = 0.1  # the gain that an unknown space may hold
_DECAY = 0.5  # of the predicted gain with each batch that brought nothing


class Stage(Protocol):
    """A part of the search that proposes candidates."""

    name: str

    def propose(self, board: Board, count: int) -> list[object]:
        """Up to `count` decisions not tried yet, the most promising first; none when it has no more."""
        ...


class Agenda:
    """Stages run one after another; ranking and descent go round again where that may find another valley.

    `ended` says why the search ended: one of `outcome`; "" while it goes on.
    """

    def __init__(
        self, stages: Sequence[Stage], board: Board, ranking: Ranking, effort: Effort, headroom: float
    ) -> None:
        """`headroom` is the logarithm of the largest speed-up there can be."""
        self._stages = list(stages)
        self._board = board
        self._ranking = ranking
        self._effort = effort
        self._headroom = headroom
        self._idle = 0  # batches of the present stage since the last that brought something
        self._cycle: list[Ranked | Descent] = []  # ranking and descent, once they were through
        self._cycle_best: object = None  # what was best when they began
        self._fruitless = 0
        self.ended = "" if self._stages else NO_STAGE

    @property
    def stage(self) -> Stage | None:
        return self._stages[0] if self._stages else None

    def end(self, reason: str) -> None:
        """The search ends, unless it has."""
        self.ended = self.ended or reason

    @property
    def is_at_roofline(self) -> bool:
        return self._headroom - self._board.best_log < math.log(AT_ROOFLINE)

    @property
    def gain(self) -> float:
        """By how much what was not tried is thought to beat the best, as a logarithm, ended or not."""
        gain = self._predicted_gain(1.0) * _DECAY**self._idle
        return max(0.0, min(gain, self._headroom - self._board.best_log))

    def proposes_nothing(self) -> None:
        """The present stage has no candidate left."""
        self._next(NO_STEP if self._stages[0].name == DESCENT else SPACE)

    def ran(self, won: bool) -> None:
        """The present stage had a batch, which found a better decision or did not."""
        self._idle = 0 if won else self._idle + 1
        if self.ended:
            return
        name = self._stages[0].name
        if name == RANKED:
            if self._idle >= self._effort.patience:
                self._next(PATIENCE)
            elif self._predicted_gain(1.0) < LEAST_GAIN:
                self._next(SMALL_GAIN)
        elif name == DESCENT and not won and self._predicted_gain(2.0) < LEAST_GAIN:
            self._next(SMALL_GAIN)

    def _next(self, reason: str) -> None:
        """The present stage has no more to give; with the last one the search ends for `reason`.

        Where descent has changed the best, or chance may find another valley, ranking and descent go round again.
        """
        done = self._stages.pop(0)
        self._idle = 0
        if done.name in (RANKED, DESCENT):
            self._cycle.append(done)
        if self._stages:
            return
        if self._cycle_best is not self._board.best:
            self._fruitless = 0
        else:
            self._fruitless += 1
        again = len(self._cycle) == 2 and bool(self._board.open.any()) and self._fruitless < self._effort.cycles
        if again and self._predicted_gain(1.0) >= LEAST_GAIN:
            self._cycle_best = self._board.best
            self._stages, self._cycle = self._cycle, []
            self._stages[-1].go_round(self._board)
        else:
            self.end(reason)

    def _predicted_gain(self, doubts: float) -> float:
        """The best score of what is not tried, with so many standard errors on top, over the best so far."""
        scores = self._ranking.scores()
        if scores is None:
            return UNTESTED
        if self._stages and isinstance(self._stages[0], Descent):
            most = self._stages[0].most_promising(self._board)
            if most is None:
                return UNTESTED
        else:
            left = scores[self._board.open]
            if not len(left):
                return 0.0
            most = float(left.max())
        return most + doubts * self._ranking.doubt - self._board.best_log
