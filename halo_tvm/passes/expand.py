"""Expand semantic operators once nothing asks for them as a whole any more.

Before -> after
    halo.ffn(x, up, down)   ->   halo.linear(gelu(halo.linear(x, up)), down)
    reshape(x, s)           ->   reshape(x, [a, b]),   with a and b named by a match_cast where s is data
    a constant of [2, 0]    ->   zeros([2, 0]):        a library holds no constant without elements
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from ..relay_ops.operator import operator_of
from .graph_pass import Context, Pass, Report, op_name

_SHAPED = {"relax.reshape", "relax.broadcast_to"}


@dataclass(frozen=True)
class Expand(Pass):
    """Rewrite every semantic operator as smaller ones."""

    name = "expand"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        mod, counts = expanded(mod, has_vectors=not context.target.spec.is_source)
        return mod, {"expanded": counts}


def expanded(mod: tvm.IRModule, *, has_vectors: bool = False) -> tuple[tvm.IRModule, dict[str, int]]:
    """`mod` without semantic operators, and how many of each there were; without those whose kernels are of vectors
    as well, unless the target has them."""
    expander = _Expander(mod, has_vectors)
    for gvar, func in list(mod.functions_items()):
        if isinstance(func, relax.Function):
            expander.builder_.update_func(gvar, expander.visit_expr(func))
    return expander.builder_.get(), expander.counts


@relax.expr_functor.mutator
class _Expander(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, has_vectors: bool) -> None:
        super().__init__(mod)
        self.has_vectors = has_vectors
        self.counts: dict[str, int] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if op_name(call) in _SHAPED:
            call = self._with_known_shape(call)
        operator = operator_of(call)
        if operator is None or not (operator.semantic or operator.in_vectors and not self.has_vectors):
            return call
        self.counts[operator.name] = self.counts.get(operator.name, 0) + 1
        return operator.expand(self.builder_, call)

    def visit_generic_const_(self, const: tvm.ir.GenericConst) -> relax.Expr:
        shape = getattr(const.ty, "shape", None)
        if isinstance(shape, relax.ShapeExpr) and any(int(dim) == 0 for dim in shape.values):
            return self.builder_.emit(relax.op.zeros(shape, str(const.ty.dtype)))
        return const

    def _with_known_shape(self, call: relax.Call) -> relax.Call:
        """The shape argument spelled out: TVM folds and lowers no call whose shape is a variable."""
        data, shape = call.args
        if isinstance(shape, relax.ShapeExpr) or not isinstance(shape.ty, relax.ShapeType) or shape.ty.ndim < 0:
            return call
        dims = shape.ty.values
        if dims is None:
            dims = [tirx.Var(f"size{i}", "int64") for i in range(shape.ty.ndim)]
            self.builder_.match_cast(shape, relax.ShapeType(dims))
        return relax.Call(call.op, [data, relax.ShapeExpr(dims)], call.attrs, call.ty_args)
