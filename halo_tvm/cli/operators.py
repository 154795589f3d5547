"""List every operator: how models are lifted to it, what fuses with it, which rules schedule its test cases here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from ..config import CompileConfig, OperatorsConfig
from ..errors import Declined
from ..plugins import load_plugins
from ..targets import resolve
from ._show import print_json, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tvm

    from ..params import ParamTable
    from ..relay_ops import Operator
    from ..targets import Target

CONFIG = OperatorsConfig


def run(config: OperatorsConfig) -> int:
    """Print one row per operator. The rules are those that a compile in fp32 takes for its test cases on this host."""
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
    """Names of the rules that take the operator's test cases, each a model of its own behind the passes of a compile.

    What lies around the operator there (a change of layout) does not count.
    """
    from tvm import tirx

    from ..passes import Context
    from ..passes.pipeline import LIFT, OPTIMISE, Pipeline
    from ..passes.schedule import rule_for
    from ..tir_schedules.blocks import blocks

    found = set()
    usual, required = Pipeline.of(CompileConfig(model="cases").level), Pipeline.of(0)
    for case in operator.cases():
        mod, params = _model(operator, case)
        packed = case.get("attrs", {}).get("layout") == "packed"  # it is what the passes make of another case
        mod, _ = (required if packed else usual).run((*LIFT, *OPTIMISE), mod, Context(params, target, {}, {}))
        functions = [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
        own = [func for func in functions if any(block.op for block in blocks(func))]
        for func in own or functions:
            try:
                found.add(rule_for(func, target).rule.name)
            except Declined:
                continue  # a target whose list ends in a fallback takes every function
    return found


def _model(operator: type[Operator], case: Mapping[str, object]) -> tuple[tvm.IRModule, ParamTable]:
    """One call: the first argument is an input, as is what the operator writes in place; all others are weights."""
    import numpy as np
    from tvm import relax

    from ..params import ParamSource, ParamTable

    inputs, weights, table = [], [], ParamTable()
    for i, arg in enumerate(case["args"]):
        array = arg if isinstance(arg, np.ndarray) else np.ones(arg, "float32")
        var = relax.Var(f"x{i}", relax.TensorType(array.shape, str(array.dtype)))
        if i == 0 or i in operator.writes.values():
            inputs.append(var)
            continue
        weights.append(var)
        table.add_source(f"x{i}", ParamSource(array.shape, str(array.dtype), lambda array=array: array))
    arguments = sorted((*inputs, *weights), key=lambda var: int(var.name[1:]))
    attrs = {"num_input": len(inputs), "halo.params": [var.name for var in weights]}
    builder = relax.BlockBuilder()
    with builder.function("main", [*inputs, *weights], attrs=attrs):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(operator.call(*arguments, **case.get("attrs", {}))))
        builder.emit_func_output(result)
    return builder.finalize(), table
