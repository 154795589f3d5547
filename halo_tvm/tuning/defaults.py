"""What the defaults take: the first thing a run measures, and what every speed-up is over."""

from __future__ import annotations

from statistics import median

from .measure import protocol as p
from .measure.lab import Lab
from .sizes import iterations, symbols
from .task import Task

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


def work(task: Task) -> int:
    """A first guess at what a task matters: how often its statements run in a model."""
    names = symbols(task.func)
    return task.count * sum(iterations(task.func, dict(zip(names, size.dims))) for size in task.sizes)
