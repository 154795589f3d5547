"""Target manifests, one file each, and how `--target` text becomes a resolved `Target`."""

from __future__ import annotations

import importlib
import pkgutil

from ._target import TARGETS, Isa, Target, TargetSpec

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["TARGETS", "Isa", "Target", "TargetSpec"]
