"""Chains of Relax operators that are computed by one function of loops instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import ir, relax, te

from ..relay_ops.operator import op_name
from ._rewrite import put
from .graph_pass import bindings, replace_main


@dataclass(frozen=True)
class Kernel:
    """What computes a tensor: `compute` of `operands`, a function called `name`."""

    compute: Callable[..., te.Tensor]
    operands: Sequence[relax.Expr]
    name: str


def with_kernels(mod: tvm.IRModule, kernels: Mapping[relax.Var, Kernel]) -> tuple[tvm.IRModule, int]:
    """`mod` whose main computes the keys of `kernels` by them, and how many of them it calls.

    What only they replace is gone, and with it kernels of what only others read.
    """
    if not kernels:
        return mod, 0
    writer = _Writer(mod, kernels)
    func = writer.visit_expr(mod["main"])
    out = relax.transform.DeadCodeElimination()(replace_main(writer.builder_.get(), func))
    called = [b.value.args[0] for b in bindings(out["main"]) if op_name(b.value) == "relax.call_tir"]
    return out, sum(kernel in writer.written for kernel in called)


@relax.expr_functor.mutator
class _Writer(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, kernels: Mapping[relax.Var, Kernel]) -> None:
        super().__init__(mod)
        self._kernels = kernels
        self.written: set[ir.GlobalVar] = set()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        kernel = self._kernels.get(binding.var)
        if kernel is None:
            super().visit_var_binding_(binding)
            return
        operands = [self.visit_expr(operand) for operand in kernel.operands]
        call = self.builder_.call_te(kernel.compute, *operands, primfunc_name_hint=kernel.name)
        self.written.add(call.args[0])
        put(self, binding.var, call)
