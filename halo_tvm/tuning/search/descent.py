"""Stage "descent": from the best decision, one field at a time, until no single step helps."""

from __future__ import annotations

import dataclasses

import numpy as np

from .analytic import distance
from .board import Board
from .efforts import DESCENT
from .ranking import Ranking


class Descent:
    """Steps change one field of the best decision to a value that some decision of the space has there.

    Steps inside the space come first, best predicted first; a rule declines what it cannot apply, so steps
    that leave the listed space follow. When it goes round again it leaves from another valley: the fastest decision
    at least two steps away from where it has been.
    """

    name = DESCENT

    def __init__(self, board: Board, ranking: Ranking) -> None:
        self._ranking = ranking
        self._aside: object | None = None  # the centre of a further round; None: the best
        self._been: list[object] = []
        self._values = {
            field.name: _ordered({getattr(d, field.name) for d in board.space})
            for field in dataclasses.fields(board.default)
        }

    def propose(self, board: Board, count: int) -> list[object]:
        """Up to `count` steps not tried yet; none when every step from the best was."""
        scores = self._ranking.scores()
        steps = [d for d in self.steps(self._centre(board)) if board.is_open(d)]

        def rank(decision: object) -> tuple[bool, float]:
            at = board.index(decision)
            return (at is None, 0.0 if at is None or scores is None else -float(scores[at]))

        return sorted(steps, key=rank)[:count]

    def go_round(self, board: Board) -> None:
        """Leave from another valley next time, where one was seen."""
        self._been.append(self._centre(board))
        far = [d for d in board.speedups if d in board.full and all(distance(d, other) > 1 for other in self._been)]
        self._aside = max(far, key=board.speedups.__getitem__, default=None)

    def _centre(self, board: Board) -> object:
        """Where steps leave from: the best, or what was found to be faster from aside."""
        while self._aside is not None:
            near = [d for d in self.steps(self._aside) if d in board.full]
            fastest = max((self._aside, *near), key=lambda d: board.speedups.get(d, 0.0))
            if fastest == self._aside:
                return fastest
            self._aside = fastest
        return board.best

    def steps(self, best: object) -> list[object]:
        """Every decision one step away, near values of a field before far ones."""
        found = []
        for name, values in self._values.items():
            own = getattr(best, name)
            at = values.index(own) if own in values else 0
            near = sorted((v for v in values if v != own), key=lambda v: abs(values.index(v) - at))
            found += [dataclasses.replace(best, **{name: value}) for value in near]
        return found

    def most_promising(self, board: Board) -> float | None:
        """The best score of a step not tried yet; None when there is no step or no score."""
        scores = self._ranking.scores()
        at = [board.index(d) for d in self.steps(self._centre(board)) if board.is_open(d)]
        known = [i for i in at if i is not None]
        return None if scores is None or not known else float(np.max(scores[known]))


def _ordered(values: set[object]) -> list[object]:
    """Numbers by size, anything else by its text."""
    return sorted(values, key=lambda v: (0, v, "") if isinstance(v, (int, float)) else (1, 0, str(v)))
