"""Target manifests, one file each, and how `--target` text becomes a resolved `Target`."""

from __future__ import annotations

import importlib
import pkgutil

from ..cuda.arch import LAUNCH_LIMITS
from ._available import Answer, can_build_here, can_run_here
from ._host import Gpu, Host, read_gpus, read_host
from ._precision import FULL, check_precision
from ._processors import default_threads, usable_cpus
from ._resolve import is_name, known_names, names_host, resolve, unknown_target
from ._target import TARGETS, Isa, Target, TargetSpec
from .gpu_levels import STATIC_SHARED_BYTES, THREADS_PER_BLOCK, WARP, capability, runs_code_of

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = [
    "FULL",
    "LAUNCH_LIMITS",
    "STATIC_SHARED_BYTES",
    "TARGETS",
    "THREADS_PER_BLOCK",
    "WARP",
    "Answer",
    "Gpu",
    "Host",
    "Isa",
    "Target",
    "TargetSpec",
    "can_build_here",
    "can_run_here",
    "capability",
    "check_precision",
    "default_threads",
    "is_name",
    "known_names",
    "names_host",
    "read_gpus",
    "read_host",
    "resolve",
    "runs_code_of",
    "unknown_target",
    "usable_cpus",
]
