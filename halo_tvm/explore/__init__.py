"""For researchers, in Python and in notebooks: tasks, decisions, loop nests, measurements, records.

from halo_tvm import explore
task = explore.tasks("mlp")[0]
explore.show(task, task.decide(mr=6))                        # its loop nest
explore.measure(task, [task.decide(mr=6)], sizes=[(32,)])    # in a process of its own, against the default
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._builds import Built, build, show
    from ._cells import register, registered
    from ._committing import commit
    from ._estimates import Estimates, estimate
    from ._fusion import Fusion, fusion
    from ._landscape import at_random, best_so_far, rank_correlation, staged
    from ._measuring import Comparison, Measurements, compare, measure
    from ._roofline import Ceilings, Roofline, ceilings, roofline
    from ._tasks import Task, Tasks, builtin, tasks

# Importing the package costs nothing: TVM is imported when the first of these is used.
_HOMES = {
    name: home
    for home, names in {
        "_builds": ("Built", "build", "show"),
        "_cells": ("register", "registered"),
        "_committing": ("commit",),
        "_estimates": ("Estimates", "estimate"),
        "_fusion": ("Fusion", "fusion"),
        "_landscape": ("at_random", "best_so_far", "rank_correlation", "staged"),
        "_measuring": ("Comparison", "Measurements", "compare", "measure"),
        "_roofline": ("Ceilings", "Roofline", "ceilings", "roofline"),
        "_tasks": ("Task", "Tasks", "builtin", "tasks"),
    }.items()
    for name in names
}

__all__ = [
    "Built",
    "Ceilings",
    "Comparison",
    "Estimates",
    "Fusion",
    "Measurements",
    "Roofline",
    "Task",
    "Tasks",
    "at_random",
    "best_so_far",
    "build",
    "builtin",
    "ceilings",
    "commit",
    "compare",
    "estimate",
    "fusion",
    "measure",
    "plots",
    "rank_correlation",
    "register",
    "registered",
    "roofline",
    "show",
    "staged",
    "tasks",
]


def __getattr__(name: str) -> object:
    if name == "plots":
        return importlib.import_module(f"{__name__}.plots")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
