"""What a race says of the best so far, and whether another takes its place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .board import Board
from .race import Outcome, Samples, cheap_sizes


class Settling:
    """Speed-ups of one task's candidates, as races show them, written to its board.

    `full_rounds`: rounds from which on a measurement counts as a full one.
    """

    def __init__(
        self, board: Board, default: object, default_us: Sequence[float], weights: Sequence[float], full_rounds: int
    ) -> None:
        self._board = board
        self._default = default
        self._weights = weights
        self._full_rounds = full_rounds
        self._cheap = cheap_sizes(default_us, weights)
        self._cheap_speedups: dict[object, float] = {}  # at those sizes

    @property
    def reached(self) -> float:
        """The best's speed-up at the sizes of a first rung, where it is known there."""
        return self._cheap_speedups.get(self._board.best, self._board.best_speedup)

    def measured(self, decision: object, speedup: float, samples: Samples | None) -> None:
        """A candidate was timed, or (without samples) is known to be so slow."""
        full = samples is not None and samples.rounds >= self._full_rounds
        self._board.measured(decision, speedup, full=full)

    def settle(self, outcome: Outcome, ids: Mapping[int, object], standing: int | None) -> None:
        """Compare those of a race's last rung; `standing` is the best's id where it ran and is not the default.

        Only those of the last rung are compared, by the rounds of that rung: earlier ones chose who got there. The
        default runs in every round, a best that is not the default from the second rung on; one that did not run
        stands, for few rounds at the cheap sizes say nothing against many at all sizes.
        """
        board, best = self._board, self._board.best
        if not outcome.last or (standing not in outcome.last and best != self._default and board.best_speedup > 0):
            return
        last = {i: samples.speedup(self._weights) for i, samples in outcome.last.items() if i not in outcome.failed}
        stood = last.pop(standing, None)
        now = math.inf
        if stood is not None:
            # The best of many noisy times is flattered by chance: what is measured again counts half. Who beats it
            # in the same rounds has beaten it, whatever it was before; who does not, has not.
            ahead = [speedup for speedup in last.values() if speedup > stood]
            now = min([math.sqrt(board.best_speedup * stood), *ahead])
            self._place(best, now, outcome.last[standing])
        for i, speedup in last.items():
            self._place(ids[i], speedup if speedup > (stood or 0.0) else min(speedup, now), outcome.last[i])
        board.settle(*(d for d in (best, *(ids[i] for i in outcome.finalists[:1])) if d in board.speedups))

    def _place(self, decision: object, speedup: float, ran: Samples) -> None:
        self.measured(decision, speedup, ran)
        self._cheap_speedups[decision] = ran.speedup(self._weights, self._cheap)
