"""Lifting small graphs: build one, lift it, compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax

from halo_tvm.params import ParamTable
from halo_tvm.passes.graph_pass import Context
from halo_tvm.passes.lift import LiftOperators
from halo_tvm.targets import TARGETS, Target


def graph(
    body: Callable[..., relax.Expr], shapes: Sequence[Sequence[object]], dtypes: Sequence[str] | None = None
) -> tvm.IRModule:
    """`body(emit, *inputs)` as a function main."""
    builder = relax.BlockBuilder()
    types = dtypes or ["float32"] * len(shapes)
    params = [relax.Var(f"a{i}", relax.TensorType(s, t)) for i, (s, t) in enumerate(zip(shapes, types))]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(out)
    return builder.get()


def lift(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, object]]:
    """`mod` with every operator's lifts applied, and the report."""
    spec = TARGETS["x86"]
    context = Context(ParamTable(), Target(spec=spec, isa=spec.isas[0], cores=2), {}, {})
    return LiftOperators()(mod, context)


def same(found: tvm.IRModule, expected: tvm.IRModule) -> None:
    """Assert that both `main` are the same up to the names of variables."""
    tidy = tvm.transform.Sequential(
        [relax.transform.Normalize(), relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    )
    tvm.ir.assert_structural_equal(tidy(found)["main"], tidy(expected)["main"], map_free_vars=True)
