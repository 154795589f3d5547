"""Expand semantic operators once nothing asks for them as a whole any more.

Before -> after
    halo.ffn(x, up, down)   ->   halo.linear(gelu(halo.linear(x, up)), down)
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ..relay_ops._operator import operator_of
from ._pass import Context, Pass, Report, replace_main


@dataclass(frozen=True)
class Expand(Pass):
    """Rewrite every semantic operator as smaller ones."""

    name = "expand"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        expander = _Expander(mod)
        func = expander.visit_expr(mod["main"])
        # The mutator's own builder may have added private functions; main is replaced in its module.
        return replace_main(expander.builder_.get(), func), {"expanded": expander.counts}


@relax.expr_functor.mutator
class _Expander(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.counts: dict[str, int] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        operator = operator_of(call)
        if operator is None or not operator.semantic:
            return call
        self.counts[operator.name] = self.counts.get(operator.name, 0) + 1
        return operator.expand(self.builder_, call)
