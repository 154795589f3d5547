"""Sizes of a function replaced by others, in all its types; and one name for a size that has several.

Before -> after
    places: [3, k] = ...;  a: [3, m] = match_cast(places)   ->   places, and k in the place of m
where the cast is the first to say m. An importer names what a run finds before a kernel that finds it does. With two
names TVM's clean-ups rename one in some places and leave it in others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..relay_ops.operator import shaped


def casts(binding: relax.MatchCast) -> Iterator[tuple[tvm.ir.Expr, tvm.ir.Expr]]:
    """(new, old) of every dimension of a tensor that is cast from one known shape to another, else nothing."""
    types = (binding.ty, binding.value.ty)
    if all(map(shaped, types)):
        yield from zip(*(ty.shape.values for ty in types))


class Sizes(relax.PyExprMutator):
    """Base of a mutator that replaces the keys of `sizes` by what they stand for."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.sizes: dict[tirx.Var, tvm.ir.Expr] = {}

    def replace(self, var: relax.Var, value: relax.Expr) -> None:
        """`value` is what `var` was; an output of the graph stays one."""
        value = value if isinstance(value, relax.Var) else self.builder_.emit(value)
        if isinstance(value, relax.DataflowVar) and not isinstance(var, relax.DataflowVar):
            value = self.builder_.emit_output(value)
        self.set_var_remap(var, value)

    def visit_shape_expr_(self, shape: relax.ShapeExpr) -> relax.Expr:
        return relax.ShapeExpr(self.replaced(shape.values))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        return relax.Call(call.op, self._numbers(call.args), call.attrs, [self.type(ty) for ty in call.ty_args])

    def visit_tuple_(self, values: relax.Tuple) -> relax.Expr:
        """A kernel takes a size by itself where no tensor of its own has it, as behind a concatenation."""
        values = super().visit_tuple_(values)
        has_numbers = any(isinstance(value.ty, tvm.ir.PrimType) for value in values.fields)
        return relax.Tuple(self._numbers(values.fields)) if has_numbers else values

    def _numbers(self, values: Sequence[tvm.ir.Expr]) -> list[tvm.ir.Expr]:
        """`values`, of which those that are numbers are replaced."""
        return [self.replaced([v])[0] if isinstance(getattr(v, "ty", None), tvm.ir.PrimType) else v for v in values]

    def type(self, ty: relax.Type) -> relax.Type:
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([self.type(field) for field in ty.fields])
        if isinstance(ty, relax.ShapeType) and ty.values is not None:
            return relax.ShapeType(self.replaced(ty.values))
        if not shaped(ty):
            return ty
        return relax.TensorType(self.replaced(ty.shape.values), ty.dtype)

    def replaced(self, dims: Sequence[tvm.ir.Expr]) -> list[tvm.ir.Expr]:
        if not self.sizes:
            return list(dims)
        return [tvm_ffi.structural_map(dim, (tirx.Var, lambda v: self.sizes.get(v, v))) for dim in dims]


def one_name_each(mod: tvm.IRModule, func: relax.Function) -> relax.Function:
    """`func` without second names of sizes."""
    namer = _OneName(mod, func)
    return namer.visit_expr(func)


@relax.expr_functor.mutator
class _OneName(Sizes):
    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self._known = {var for param in func.params for var in relax.analysis.tir_vars_in_type(param.ty)}

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        value = self.visit_expr(binding.value)
        if shaped(value.ty) and shaped(binding.ty):
            for dim, old in zip(binding.ty.shape.values, value.ty.shape.values):
                if isinstance(dim, tirx.Var) and dim not in self._known and isinstance(old, tirx.Var | tirx.IntImm):
                    self.sizes.setdefault(dim, old)
        ty = self.type(binding.ty)
        if shaped(value.ty) and shaped(ty) and tvm_ffi.structural_equal(ty.shape, value.ty.shape):
            self.replace(binding.var, value)
            return
        self._known |= set(relax.analysis.tir_vars_in_type(ty))
        if tvm_ffi.structural_equal(ty, binding.ty):
            super().visit_match_cast_(binding)
        else:
            self.replace(binding.var, self.builder_.match_cast(value, ty))
