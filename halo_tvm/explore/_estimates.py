"""What a rule's model predicts for decisions, before any is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..tuning.sizes import symbols
from ._builds import rule_for
from ._table import Rows
from ._tasks import Task

_SHOWN = 20


@dataclass(frozen=True)
class Estimate:
    """Predicted microseconds by size, and their weighted geometric mean."""

    decision: object
    label: str
    us: tuple[float, ...]
    score: float


@dataclass(frozen=True, repr=False)
class Estimates(Rows[Estimate]):
    """Predictions, the smallest first. Only their order is meant: no clock was asked."""

    task: Task
    rows: tuple[Estimate, ...]

    @property
    def best(self) -> Estimate:
        return self.rows[0]

    def of(self, decision: object) -> Estimate:
        for row in self.rows:
            if row.decision == decision:
                return row
        raise UsageError(f"expected a decision that was estimated, found {decision!r}: pass it to explore.estimate")

    def _table(self) -> tuple[list[str], list[list[object]], str]:
        sizes = ["x".join(map(str, dims)) or "its size" for dims in self.task.sizes]
        rows: list[list[object]] = [[i + 1, r.label, *r.us] for i, r in enumerate(self.rows[:_SHOWN])]
        shown = f", the first {_SHOWN} shown" if len(self.rows) > _SHOWN else ""
        title = f"{self.task.name}: {len(self.rows)} predictions{shown}"
        return ["rank", "decision", *(f"us at {size}" for size in sizes)], rows, title


def estimate(task: Task, decisions: Sequence[object] = (), *, sizes: Sequence[Sequence[int]] = ()) -> Estimates:
    """Predictions for `decisions`, by default for the whole space, at the task's sizes or at `sizes`.

    `UsageError` when the rule has no model.
    """
    timed = task.at(sizes) if sizes else task
    names = symbols(timed.func)
    rows = []
    for decision in dict.fromkeys(decisions or timed.space):
        rule = rule_for(timed, decision)
        us = []
        for dims in timed.sizes:
            predicted = rule.estimate(timed.func, timed.target, decision, dict(zip(names, dims)))
            if predicted is None:
                raise UsageError(
                    f"expected a rule that predicts times, but {rule.name} has no estimate for {timed.name}: "
                    "give the rule an estimate, or measure"
                )
            us.append(predicted)
        weights = [size.weight for size in timed.tuning.sizes]
        score = math.exp(sum(w * math.log(max(t, 1e-9)) for w, t in zip(weights, us)) / sum(weights))
        rows.append(Estimate(decision, timed.describe(decision), tuple(us), score))
    return Estimates(timed, tuple(sorted(rows, key=lambda row: row.score)))
