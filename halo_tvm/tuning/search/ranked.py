"""Stage "ranked": of the whole space, what the models rank first, and some at random."""

from __future__ import annotations

import numpy as np

from .board import Board
from .efforts import RANKED
from .ranking import Ranking

_FEW = 16  # trials of a task
_TIE = 0.002  # scores this close say nothing about the order: chance decides, which spreads a batch


class Ranked:
    """Ranks the open decisions anew for every batch."""

    name = RANKED

    def __init__(self, ranking: Ranking, epsilon: float, seed: int) -> None:
        self._ranking = ranking
        self._epsilon = epsilon
        self._chance = np.random.default_rng(seed)

    def propose(self, board: Board, count: int) -> list[object]:
        """Up to `count` decisions not tried yet, the most promising first; none when all were."""
        left = np.flatnonzero(board.open)
        if not len(left):
            return []
        scores = self._ranking.scores()
        if scores is None:
            chosen = self._chance.permutation(left)[:count]
        else:
            # What is learned of one corner says little about the rest: the first batches look around more.
            share = self._epsilon * (2.0 if self._ranking.measured < _FEW else 1.0)
            explored = min(len(left), int(share * count + 0.5))
            noisy = scores[left] + self._chance.uniform(0.0, _TIE, len(left))
            # argpartition: a space may hold thousands, and a batch is small
            most = min(len(left), count - explored)
            top = np.argpartition(-noisy, most - 1)[:most] if most else np.empty(0, dtype=int)
            top = top[np.argsort(-noisy[top])]
            rest = np.setdiff1d(np.arange(len(left)), top, assume_unique=True)
            chosen = left[np.concatenate([top, self._chance.permutation(rest)[:explored]]).astype(int)]
        return [board.space[i] for i in chosen]
