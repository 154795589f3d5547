"""Schedule rules, one file each. Which rules a target uses, and in which order, its manifest says."""

from __future__ import annotations

import importlib
import pkgutil

from .blocks import has_exact_buffers
from .rule import RULES, Rule

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["RULES", "Rule", "has_exact_buffers"]
