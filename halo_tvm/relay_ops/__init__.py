"""Operators, one file each: mathematics, type rule, reference, lifts, cost, test cases.

Importing the package registers every operator as `relax.halo.<name>`; nothing may depend on the order.
"""

from __future__ import annotations

import importlib
import pkgutil

from .operator import OPERATORS, Lift, Operator

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["OPERATORS", "Lift", "Operator"]
