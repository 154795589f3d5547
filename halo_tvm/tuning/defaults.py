"""What the defaults take: the first thing a run measures, and what every speed-up is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ..records.record import Size
from .measure import protocol as p
from .measure.lab import Lab
from .sizes import iterations, symbols
from .task import Task

LATENCY_SHARE = 0.3  # of a budget, at most, once a default was timed
_ROUNDS = 3
_LONG_US = 30_000.0


def latencies(lab: Lab, task: Task) -> list[float]:
    """Medians of the default at the sizes of `task`, from the lightest to the first that takes long.

    Beyond that a kernel is bound by arithmetic, and a larger size says nothing new.
    """
    medians = [lab.open(task, compare=False)]
    for size in range(len(task.sizes)):
        samples = lab.race([p.DEFAULT_ID], size, _ROUNDS, medians[-1])
        medians.append(median(samples[p.DEFAULT_ID]))
        if medians[-1] > _LONG_US:
            break
    return medians[1:]


def timed_sizes(task: Task, default_us: Sequence[float]) -> Task:
    """`task` with the sizes at which `latencies` timed its default; their weights add up to 1 again."""
    kept = task.sizes[: len(default_us)]
    total = sum(size.weight for size in kept)
    return replace(task, sizes=tuple(Size(size.dims, size.weight / total) for size in kept))


def importance(task: Task, default_us: Sequence[float]) -> float:
    """Time in us that a model spends there: call sites times the weighted latency of the default."""
    return task.count * sum(size.weight * us for size, us in zip(task.sizes, default_us))


def work(task: Task) -> int:
    """A first guess at what a task matters: how often its statements run in a model."""
    names = symbols(task.func)
    return task.count * sum(iterations(task.func, dict(zip(names, size.dims))) for size in task.sizes)
