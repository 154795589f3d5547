"""Scores of a task's decisions: the analytic model and the learned one, combined by how much was learned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .board import Board
from .cost_model import CostModel
from .features import Table

_HALF_TRUST = 12.0  # rows of the same task at which the learned model counts as much as the analytic one
_ENOUGH = 8  # trials before the analytic model is judged by them
_OTHER_ROW = 0.1  # what a row of another task is worth beside one of this task
_DOUBT = 0.1  # a model's standard error in log speed-up before anything says otherwise
_DOUBT_ROWS = 4.0  # what that is worth beside predictions that were checked
_DOUBT_PAIRS = 24  # the last ones: a model gets better


class Ranking:
    """`analytic` and the rows of `table` are by index in the board's space; either may be missing."""

    def __init__(
        self,
        board: Board,
        workload: str,
        analytic: np.ndarray | None,
        model: CostModel | None,
        table: Table | None = None,
    ) -> None:
        self._board = board
        self._workload = workload
        self._analytic = analytic
        self._model = model
        self._table = table
        self._scores: np.ndarray | None = None
        self._stale = True
        self._own = 0
        self._checked: list[tuple[float, float]] = []  # the analytic model's log speed-ups, and measured ones
        self.pairs: list[tuple[float, float]] = []  # log speed-ups, predicted before measuring and measured

    def scores(self) -> np.ndarray | None:
        """Predicted log speed-up of each decision of the space; None when nothing is known."""
        if self._stale:
            self._scores = self._combined()
            self._stale = False
        return self._scores

    def score(self, decision: object) -> float | None:
        """The same of one decision."""
        scores, at = self.scores(), self._board.index(decision)
        return None if scores is None or at is None else float(scores[at])

    def learn(self, results: Sequence[tuple[object, float | None, float]]) -> None:
        """(decision, score before it was measured, measured log speed-up) of a batch."""
        for decision, predicted, measured in results:
            if predicted is not None and math.isfinite(predicted):
                self.pairs.append((predicted, measured))
            at = self._board.index(decision)
            if self._analytic is not None and at is not None and math.isfinite(self._analytic[at]):
                self._checked.append((float(self._analytic[at]), measured))
            if self._model is not None and self._table is not None and at is not None:
                self._model.add(self._table.rows[at], measured, self._workload)
                self._own += 1
        self._stale = True

    def refit(self) -> None:
        """Fit the learned model to what is known now; call it while nothing is measured."""
        if self._model is not None:
            self._model.fit(self._workload)
            self._stale = True

    @property
    def measured(self) -> int:
        """Trials of this task in this run."""
        return self._own

    @property
    def doubt(self) -> float:
        """The standard error of the scores, from this task's own predictions once there are some."""
        recent = self.pairs[-_DOUBT_PAIRS:]
        squares = sum((p - m) ** 2 for p, m in recent)
        return math.sqrt((_DOUBT_ROWS * _DOUBT**2 + squares) / (_DOUBT_ROWS + len(recent)))

    @property
    def correlation(self) -> float | None:
        """Spearman's, of predicted and measured speed-ups; None with fewer than three trials."""
        return spearman([p for p, _ in self.pairs], [m for _, m in self.pairs])

    def _combined(self) -> np.ndarray | None:
        learned = None if self._model is None or self._table is None else self._model.predict(self._table)
        if learned is None:
            return self._analytic
        worth = self._own + _OTHER_ROW * max(0, self._model.rows - self._own)
        share = worth / (worth + _HALF_TRUST)
        if self._analytic is None:
            return share * learned
        analytic = np.where(np.isfinite(self._analytic), self._analytic, np.log(0.25))
        return share * learned + (1.0 - share) * self._trust() * analytic

    def _trust(self) -> float:
        """How much of the analytic order was seen in measurements; all of it before there are enough."""
        if len(self._checked) < _ENOUGH:
            return 1.0
        found = spearman([a for a, _ in self._checked], [m for _, m in self._checked])
        return min(1.0, max(0.0, 2.0 * (found or 0.0)))


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The rank correlation of two samples, ties at their mean rank; None when it is not defined."""
    if len(a) < 3:
        return None
    x, y = _ranks(np.asarray(a)), _ranks(np.asarray(b))
    x, y = x - x.mean(), y - y.mean()
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / norm if norm else None


def _ranks(values: np.ndarray) -> np.ndarray:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[group]
