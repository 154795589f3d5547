"""TVM's own graph passes under the names of our pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ._pass import Context, Pass, Report, bindings


def _counted(mod: tvm.IRModule, *steps: tvm.ir.transform.Pass) -> tuple[tvm.IRModule, Report]:
    before = len(bindings(mod["main"]))
    mod = tvm.transform.Sequential(list(steps))(mod)
    return mod, {"bindings_before": before, "bindings_after": len(bindings(mod["main"]))}


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Evaluate what depends on constants only. Weights are parameters, so none is ever folded."""

    name = "fold"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        return _counted(mod, relax.transform.FoldConstant(), relax.transform.CanonicalizeBindings())


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Compute equal expressions once."""

    name = "cse"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        return _counted(mod, relax.transform.EliminateCommonSubexpr(), relax.transform.CanonicalizeBindings())


@dataclass(frozen=True)
class DeadCode(Pass):
    """Drop what no output needs."""

    name = "dce"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        return _counted(mod, relax.transform.DeadCodeElimination())
