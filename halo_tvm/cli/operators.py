"""List every operator: how models are lifted to it, what fuses with it, which rules serve it on this host."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from ..config import OperatorsConfig
from ..errors import Declined
from ..plugins import load_plugins
from ..targets import resolve
from ._show import print_json, table

if TYPE_CHECKING:
    from ..relay_ops import Operator
    from ..targets import Target

CONFIG = OperatorsConfig


def run(config: OperatorsConfig) -> int:
    """Print one row per operator. The rules are those that take its test cases, unfused, on this host."""
    from ..relay_ops import OPERATORS

    load_plugins()
    target = resolve("cpu")
    rows = [
        {
            "operator": f"halo.{name}",
            "module": operator.__module__,
            "about": (inspect.getdoc(inspect.getmodule(operator)) or "").split("\n")[0],
            "lifts": [lift.name for lift in operator.lifts()],
            "fusible": operator.fusible,
            "semantic": operator.semantic,
            "cases": len(operator.cases()),
            "rules": [] if operator.semantic else sorted(_rules(operator, target)),
        }
        for name, operator in sorted(OPERATORS.items())
    ]
    if config.json:
        print_json(rows)
        return 0
    print(
        table(
            ("operator", "module", "fuses", "scheduled by", "lifts", "cases", "about"),
            [
                (
                    row["operator"],
                    row["module"],
                    "yes" if row["fusible"] else "no",
                    "expanded earlier" if row["semantic"] else ", ".join(row["rules"]),
                    len(row["lifts"]),
                    row["cases"],
                    row["about"],
                )
                for row in rows
            ],
        )
    )
    return 0


def _rules(operator: type[Operator], target: Target) -> set[str]:
    """Names of the rules that take the operator's test cases, each lowered by itself."""
    import numpy as np
    from tvm import relax, tirx

    from ..passes.schedule import rule_for

    found = set()
    for case in operator.cases():
        arrays = [
            (arg.shape, str(arg.dtype)) if isinstance(arg, np.ndarray) else (arg, "float32") for arg in case["args"]
        ]
        params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(arrays)]
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            builder.emit_func_output(builder.emit(operator.call(*params, **case.get("attrs", {}))))
        for _, func in relax.transform.LegalizeOps()(builder.finalize()).functions_items():
            if isinstance(func, tirx.PrimFunc):
                try:
                    found.add(rule_for(func, target).rule.name)
                except Declined:
                    continue  # a target whose list ends in a fallback takes every function
    return found
