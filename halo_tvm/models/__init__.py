"""Built-in model definitions, weights optional; one file per family."""

from __future__ import annotations

import importlib
import pkgutil

from ._defaults import completed
from ._definition import FAMILIES, Family

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    importlib.import_module(f"{__name__}.{_module}")

PRESETS = {name: (family, config) for family in FAMILIES.values() for name, config in family.presets.items()}

__all__ = ["FAMILIES", "PRESETS", "Family", "completed"]
