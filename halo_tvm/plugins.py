"""Plug-ins: other distributions' operators, passes, schedules and targets, found by entry point.

A distribution names its modules in its metadata; importing one registers what it defines, exactly as
the modules of this package do:

    [project.entry-points."halo_tvm.operators"]
    my_operator = "my_package.my_operator"
"""

from __future__ import annotations

import importlib.metadata

from .errors import EnvironmentProblem

GROUPS = ("halo_tvm.targets", "halo_tvm.schedules", "halo_tvm.operators", "halo_tvm.passes")


def load_plugins() -> tuple[str, ...]:
    """Import every plug-in, each once per process, and return their names.

    `EnvironmentProblem` names the one that cannot be imported or that defines a name twice.
    """
    loaded = []
    for group in GROUPS:
        for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda e: e.name):
            try:
                entry.load()
            except (ImportError, AttributeError, SyntaxError, ValueError, AssertionError) as error:
                owner = entry.dist.name if entry.dist else "an unknown distribution"
                raise EnvironmentProblem(
                    f"the plug-in {entry.name!r} ({entry.value}, of {owner}) must import cleanly, "
                    f"but {type(error).__name__}: {error}: "
                    "correct or uninstall it"
                ) from error
            loaded.append(f"{group.removeprefix('halo_tvm.')}:{entry.name}")
    return tuple(loaded)
