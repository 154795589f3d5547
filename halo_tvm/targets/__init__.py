"""Target manifests, one file each, and how `--target` text becomes a resolved `Target`."""

from __future__ import annotations

import importlib
import pkgutil

from ._available import Answer, can_build_here, can_run_here
from ._gpu import WARP
from ._host import Gpu, Host, read_gpus, read_host, usable_cpus
from ._precision import FULL, check_precision
from ._resolve import known_names, resolve
from ._target import TARGETS, Isa, Target, TargetSpec

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = [
    "FULL",
    "TARGETS",
    "WARP",
    "Answer",
    "Gpu",
    "Host",
    "Isa",
    "Target",
    "TargetSpec",
    "can_build_here",
    "can_run_here",
    "check_precision",
    "known_names",
    "read_gpus",
    "read_host",
    "resolve",
    "usable_cpus",
]
