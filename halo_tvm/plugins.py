"""Plug-ins: other distributions' operators, passes, schedules and targets, found by entry point.

A distribution names its modules in its metadata; importing one registers what it defines, exactly as
the modules of this package do:

    [project.entry-points."halo_tvm.operators"]
    my_operator = "my_package.my_operator"
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys

from .errors import EnvironmentProblem

GROUPS = ("halo_tvm.targets", "halo_tvm.schedules", "halo_tvm.operators", "halo_tvm.passes")


def load_plugins() -> tuple[str, ...]:
    """Import every plug-in, each once per process, and return their names.

    `EnvironmentProblem` names the one that cannot be imported or that defines a name twice.
    """
    loaded = []
    for entry in _entries(tuple(sys.path)):
        try:
            entry.load()
        except (ImportError, AttributeError, SyntaxError, ValueError, AssertionError) as error:
            owner = entry.dist.name if entry.dist else "an unknown distribution"
            raise EnvironmentProblem(
                f"the plug-in {entry.name!r} ({entry.value}, of {owner}) must import cleanly, "
                f"but {type(error).__name__}: {error}: "
                "correct or uninstall it"
            ) from error
        loaded.append(f"{entry.group.removeprefix('halo_tvm.')}:{entry.name}")
    return tuple(loaded)


@functools.lru_cache(maxsize=1)  # reading the metadata of everything installed takes as long as compiling a small net
def _entries(_path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Those of our groups, in their order, as long as packages are looked for in the same places."""
    found = importlib.metadata.entry_points()
    return tuple(entry for group in GROUPS for entry in sorted(found.select(group=group), key=lambda e: e.name))
