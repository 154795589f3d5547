"""Constants without elements become tensors that are allocated: the virtual machine's file format cannot hold them.

Before -> after
    f(const[2, 0], out)      ->      lv = builtin.alloc_tensor((2, 0)); f(lv, out)
"""

from __future__ import annotations

import tvm
from tvm import ir, relax


@tvm.transform.module_pass(opt_level=0, name="halo.AllocateEmptyConstants")
class AllocateEmptyConstants:
    """The pass, for Relax whose calls are those of functions."""

    def transform_module(self, mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        out = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                out[gvar] = _Allocating(mod).visit_expr(func)
        return out


@relax.expr_functor.mutator
class _Allocating(relax.PyExprMutator):
    def visit_generic_const_(self, op: ir.GenericConst) -> relax.Expr:
        if not isinstance(op.ty, relax.TensorType) or 0 not in map(int, op.ty.shape.values):
            return op
        return self.builder_.emit(relax.op.builtin.alloc_tensor(op.ty.shape, str(op.ty.dtype), 0))
