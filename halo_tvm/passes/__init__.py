"""Graph passes, one per file; `pipeline` lists them per phase and opt level."""

from __future__ import annotations

import importlib
import pkgutil

from .graph_pass import PASSES, Context, Overrides, Pass

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["PASSES", "Context", "Overrides", "Pass"]
