"""Tensors whose only bound is a constant of the model take what they need: TVM's memory plan would take the bound.

Before -> after, in front of TVM's plan
    alloc = builtin.alloc_tensor([min(9999, n), 64])
        ->   storage = memory.alloc_storage([256 * min(9999, n)]);  alloc = memory.alloc_tensor(storage, 0, ...)
Why
    the end of a slice is often written as "very far": two such axes of an image are gigabytes
Leaves alone
    constant sizes, sizes without a bound, and those of dimensions whose range the model declares
"""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax, tirx

from .dimensions import itemsize_of
from .relay_ops.operator import op_name

_ENDLESS = 1 << 62


@tvm.transform.module_pass(opt_level=0, name="halo.ExactSizes")
class ExactSizes:
    """The pass, for a module behind CallTIRRewrite."""

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        mod = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod[gvar] = _Exact(mod, func).visit_expr(func)
        return mod


@relax.expr_functor.mutator
class _Exact(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self._declared = {str(name) for name in (func.attrs and func.attrs.get("tir_var_upper_bound")) or ()}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if op_name(call) != "relax.builtin.alloc_tensor":
            return super().visit_call_(call)
        shape, dtype = call.args[0], str(call.args[1].value)
        if not any(map(self._only_by_a_constant, shape.values)):
            return call
        size = math.prod(shape.values, start=tirx.IntImm("int64", itemsize_of(dtype)))
        storage = self.builder_.emit(relax.op.memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8"))
        return relax.op.memory.alloc_tensor(storage, 0, shape, dtype)

    def _only_by_a_constant(self, dim: ir.Expr) -> bool:
        if isinstance(dim, tirx.IntImm) or {v.name for v in tirx.analysis.undefined_vars(dim)} <= self._declared:
            return False
        return int(tvm.sym.Analyzer().const_int_bound(dim).max_value) < _ENDLESS
