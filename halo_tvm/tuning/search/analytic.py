"""Stage "analytic": what the rule's own model says about every decision, before anything is measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...errors import Declined
from ...targets import Target
from ..sizes import symbols
from ..task import Task

_FIELD = 0.02  # without a model: what a field that differs from the default's is taken to cost


def predicted_speedups(task: Task, target: Target, decisions: Sequence[object]) -> tuple[np.ndarray, bool]:
    """(log speed-up over the default of each decision, weighted over the sizes; whether the rule has a model).

    Without a model decisions near the default come first. A decision the rule declines is the last.
    """
    default = _log_us(task, target, task.default)
    if default is None:
        return np.array([-_FIELD * distance(d, task.default) for d in decisions]), False
    logs = [_log_us(task, target, d) for d in decisions]
    return np.array([default - us if us is not None else -math.inf for us in logs]), True


def predicted_us(task: Task, target: Target, decision: object) -> float | None:
    """What the rule's model says a call takes, the weighted geometric mean over the sizes; None: nothing."""
    log_us = _log_us(task, target, decision)
    return None if log_us is None else math.exp(log_us)


def distance(a: object, b: object) -> int:
    """The number of fields in which two decisions differ."""
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in dataclasses.fields(a))


def _log_us(task: Task, target: Target, decision: object) -> float | None:
    """The weighted mean over the sizes of the logarithm of the predicted time; None: not predicted."""
    names = symbols(task.func)
    total = 0.0
    for size in task.sizes:
        try:
            us = task.rule.estimate(task.func, target, decision, dict(zip(names, size.dims)))
        except Declined:
            return None
        if us is None or not 0.0 < us < math.inf:
            return None
        total += size.weight * math.log(us)
    return total / sum(size.weight for size in task.sizes)
