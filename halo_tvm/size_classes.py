"""Allocations of open sizes in classes: the pool keeps what a run gives back, by its size, for as long as it lives.

Before -> after
    storage = memory.alloc_storage([4 * n])   ->   storage = memory.alloc_storage([power_of_two(4 * n)])
Why
    a server that sees every length would hold memory for each of them; of powers of two all together hold twice the
    largest. An operating system gives pages as they are touched, so that the rest of a class costs addresses only
Leaves alone
    constant sizes; GPUs, whose memory is taken whole, and whose pool gives all back where there is no more
"""

from __future__ import annotations

import tvm
from tvm import ir, relax, tirx

_LEAST = 4096  # bytes: the pool's own unit


@tvm.transform.module_pass(opt_level=0, name="halo.SizeClasses")
class SizeClasses:
    """The pass, for a module behind LowerAllocTensor."""

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        mod = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod[gvar] = _InClasses(mod).visit_expr(func)
        return mod


def class_of(size: ir.Expr) -> ir.Expr:
    """The least power of two that `size` bytes fit into, from 4096 on."""
    one = tirx.IntImm("int64", 1)
    last = tirx.max(size, tirx.IntImm("int64", _LEAST)) - one
    return tirx.shift_left(one, tirx.IntImm("int64", 64) - tirx.Cast("int64", tirx.clz(last)))


@relax.expr_functor.mutator
class _InClasses(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not (isinstance(call.op, ir.Op) and call.op.name == "relax.memory.alloc_storage"):
            return super().visit_call_(call)
        (size,) = call.args[0].values
        if isinstance(size, tirx.IntImm):
            return call
        return relax.op.memory.alloc_storage(relax.ShapeExpr([class_of(size)]), *call.args[1:])
