"""Give products of dimensions a name while kernels are made, so that kernels depend on few symbols.

Before -> after
    r: [batch * sequence, k] = reshape(x)   ->   r': [rows, k] = match_cast(r)
Kernels over r' are functions of `rows` alone, whatever product it stands for: functions of equal
mathematics become equal, and a tuning record made for one model is found by another.
`resolve_rows` puts the product back into main (kernels keep their own symbol), where the memory plan
bounds it by the declared ranges.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx

from ._pass import op_name, replace_main


def name_rows(mod: tvm.IRModule) -> tvm.IRModule:
    """Behind every reshape to a dimension that is a product, cast it to a variable."""
    namer = _Namer(mod)
    return replace_main(namer.builder_.get(), namer.visit_expr(mod["main"]))


def resolve_rows(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace row variables of main by the products they stand for."""
    resolver = _Resolver(mod)
    return replace_main(resolver.builder_.get(), resolver.visit_expr(mod["main"]))


@relax.expr_functor.mutator
class _Namer(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._named: list[tuple[tvm.ir.Expr, tirx.Var]] = []
        self._analyzer = tvm.sym.Analyzer()
        self._taken = _names(mod["main"])

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        if op_name(binding.value) != "relax.reshape" or not isinstance(binding.var, relax.DataflowVar):
            return
        dims = binding.var.ty.shape.values
        named = [self._name(dim) for dim in dims]
        if any(not a.same_as(b) for a, b in zip(dims, named)):
            value = self.visit_expr(binding.var)
            self.set_var_remap(
                binding.var, self.builder_.match_cast(value, relax.TensorType(named, binding.var.ty.dtype))
            )

    def _name(self, dim: tvm.ir.Expr) -> tvm.ir.Expr:
        if isinstance(dim, (tirx.IntImm, tirx.Var)):
            return dim
        for product, var in self._named:
            if self._analyzer.can_prove_equal(product, dim):
                return var
        name = f"rows{len(self._named) or ''}"
        while name in self._taken:  # sizes are looked up by name, so a dimension of the model keeps its own
            name += "_"
        self._taken.add(name)
        var = tirx.Var(name, "int64")
        self._named.append((dim, var))
        return var


def _names(func: relax.Function) -> set[str]:
    return {var.name for var in relax.analysis.defined_symbolic_vars(func)}


@relax.expr_functor.mutator
class _Resolver(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._products: dict[tirx.Var, tvm.ir.Expr] = {}

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        value = self.visit_expr(binding.value)
        for dim, product in zip(binding.ty.shape.values, value.ty.shape.values):
            if isinstance(dim, tirx.Var):
                self._products.setdefault(dim, product)
        self.set_var_remap(binding.var, value)

    def visit_shape_expr_(self, shape: relax.ShapeExpr) -> relax.Expr:
        return relax.ShapeExpr(self._resolved(shape.values))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        return relax.Call(call.op, call.args, call.attrs, [self._type(ty) for ty in call.ty_args])

    def _type(self, ty: relax.Type) -> relax.Type:
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([self._type(field) for field in ty.fields])
        return relax.TensorType(self._resolved(ty.shape.values), ty.dtype)

    def _resolved(self, dims: Sequence[tvm.ir.Expr]) -> list[tvm.ir.Expr]:
        return [tvm_ffi.structural_map(dim, (tirx.Var, lambda v: self._products.get(v, v))) for dim in dims]
