"""List every operator: its file, how models are lifted to it, what fuses with it, which rules may serve it."""

from __future__ import annotations

import inspect

from ..config import OperatorsConfig
from ..plugins import load_plugins
from ._show import print_json, table

CONFIG = OperatorsConfig


def run(config: OperatorsConfig) -> int:
    """Print one row per operator."""
    from ..relay_ops import OPERATORS

    load_plugins()
    rows = []
    for name, operator in sorted(OPERATORS.items()):
        rows.append({
            "operator": f"halo.{name}",
            "module": operator.__module__,
            "about": (inspect.getdoc(inspect.getmodule(operator)) or "").split("\n")[0],
            "lifts": [lift.name for lift in operator.lifts()],
            "fusible": operator.fusible,
            "semantic": operator.semantic,
            "cases": 0 if operator.semantic and not hasattr(operator, "cases") else len(operator.cases()),
        })  # fmt: skip
    if config.json:
        print_json(rows)
        return 0
    print(table(("operator", "fuses", "lowering", "lifted from", "cases", "about"), [
        (row["operator"], "yes" if row["fusible"] else "no", "expanded" if row["semantic"] else "a function",
         ", ".join(row["lifts"]) or "-", row["cases"], row["about"])
        for row in rows
    ]))  # fmt: skip
    return 0
