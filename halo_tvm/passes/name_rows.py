"""Give products of dimensions a name while kernels are made, so that kernels depend on few symbols.

Before -> after
    r: [batch * sequence, k] = reshape(x)   ->   r': [rows, k] = match_cast(r)
Kernels over r' are functions of `rows` alone, whatever product it stands for: functions of equal
mathematics become equal, and a tuning record made for one model is found by another.
A size that a kernel of the importer's own is written in keeps its spelling: its neighbours could not join it else. So
does one that meets its product in an operator, whose result would have no known shape.
`resolve_rows` puts the product back into main (kernels keep their own symbol) as soon as kernels are fused: TVM's
clean-ups keep one of two names of a product, and the memory plan bounds a product by the declared ranges.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..relay_ops.operator import shaped
from ._sizes import Sizes, casts
from .graph_pass import bindings, op_name, replace_main

_PREFIX = "rows"


def name_rows(mod: tvm.IRModule) -> tvm.IRModule:
    """Behind every reshape to a dimension that is a product, cast it to a variable."""
    kept = _sizes_of_kernels(mod["main"])
    while True:
        namer = _Namer(mod, kept)
        named = namer.visit_expr(mod["main"])
        if not namer.lost:
            return replace_main(namer.builder_.get(), named)
        kept += namer.lost


def resolve_rows(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace row variables of main by the products they stand for."""
    resolver = _Resolver(mod)
    return replace_main(resolver.builder_.get(), resolver.visit_expr(mod["main"]))


@relax.expr_functor.mutator
class _Namer(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, kept: Sequence[tvm.ir.Expr]) -> None:
        super().__init__(mod)
        self.lost: list[tvm.ir.Expr] = []  # sizes whose names left a result without a shape
        self._named: list[tuple[tvm.ir.Expr, tirx.Var]] = []
        self._analyzer = tvm.sym.Analyzer()
        self._taken = _names(mod["main"])
        self._kept = kept

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        if shaped(binding.var.ty) and not shaped(self.visit_expr(binding.var).ty):
            args = [self.visit_expr(arg) for arg in relax.analysis.free_vars(binding.value)]
            met = {dim for arg in args if shaped(arg.ty) for dim in arg.ty.shape.values if isinstance(dim, tirx.Var)}
            self.lost += [product for product, var in self._named if var in met]
            if isinstance(binding.var, relax.DataflowVar):  # operators behind it are typed by its shape
                restored = self.builder_.match_cast(self.visit_expr(binding.var), binding.var.ty)
                self.set_var_remap(binding.var, restored)
        else:
            self.lost += self._parts_of(self.visit_expr(binding.var).ty)
        if op_name(binding.value) != "relax.reshape" or not isinstance(binding.var, relax.DataflowVar):
            return
        dims = binding.var.ty.shape.values
        # Beyond matrices only products are named: H - 2 of an image is written so in the kernels of its neighbours.
        named = [self._name(dim) if len(dims) <= 2 or isinstance(dim, tirx.Mul) else dim for dim in dims]
        if any(not a.same_as(b) for a, b in zip(dims, named)):
            value = self.visit_expr(binding.var)
            self.set_var_remap(
                binding.var, self.builder_.match_cast(value, relax.TensorType(named, binding.var.ty.dtype))
            )

    def _parts_of(self, ty: relax.Type) -> list[tvm.ir.Expr]:
        """The products whose names are only part of a size of `ty`: kernels would take each name as a scalar."""
        sizes = [dim for dim in ty.shape.values if not isinstance(dim, tirx.Var)] if shaped(ty) else []
        met = {var for dim in sizes for var in tirx.analysis.undefined_vars(dim)}
        return [product for product, var in self._named if var in met]

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        """Sizes that an importer declared follow the names given to them meanwhile."""
        ty = binding.ty
        if not isinstance(binding.var, relax.DataflowVar) or not isinstance(
            getattr(ty, "shape", None), relax.ShapeExpr
        ):
            super().visit_match_cast_(binding)
            return
        named = [self._known(dim) for dim in ty.shape.values]
        if all(a.same_as(b) for a, b in zip(ty.shape.values, named)):
            super().visit_match_cast_(binding)
            return
        value = self.visit_expr(binding.value)
        self.set_var_remap(binding.var, self.builder_.match_cast(value, relax.TensorType(named, ty.dtype)))

    def _known(self, dim: tvm.ir.Expr) -> tvm.ir.Expr:
        """The name that `dim` has by now, or itself."""
        if isinstance(dim, (tirx.IntImm, tirx.Var)):
            return dim
        return next((var for product, var in self._named if self._analyzer.can_prove_equal(product, dim)), dim)

    def _name(self, dim: tvm.ir.Expr) -> tvm.ir.Expr:
        if isinstance(dim, (tirx.IntImm, tirx.Var)):
            return dim
        for product, var in self._named:
            if self._analyzer.can_prove_equal(product, dim):
                return var
        if any(self._analyzer.can_prove_equal(size, dim) for size in self._kept):
            return dim
        name = f"{_PREFIX}{len(self._named) or ''}"
        while name in self._taken:  # sizes are looked up by name, so a dimension of the model keeps its own
            name += "_"
        self._taken.add(name)
        var = tirx.Var(name, "int64")
        self._named.append((dim, var))
        return var


def _named(func: relax.Function) -> set[tirx.Var]:
    """Variables that `name_rows` made: casts of reshapes introduce them."""
    values = {b.var: b.value for b in bindings(func)}
    return {
        dim
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.MatchCast) and op_name(values.get(binding.value)) == "relax.reshape"
        for dim, product in casts(binding)
        if isinstance(dim, tirx.Var) and not dim.same_as(product) and dim.name.startswith(_PREFIX)
    }


def _sizes_of_kernels(func: relax.Function) -> list[tvm.ir.Expr]:
    """Computed sizes of the tensors that kernels read and write which are there before the operators become some."""
    found: list[tvm.ir.Expr] = []
    for call in (b.value for b in bindings(func) if op_name(b.value) in ("relax.call_tir", "relax.call_tir_inplace")):
        types = [field.ty for field in call.args[1].fields]
        for ty in [*types, *(t for out in call.ty_args for t in getattr(out, "fields", [out]))]:
            shape = ty.shape.values if isinstance(getattr(ty, "shape", None), relax.ShapeExpr) else ()
            for dim in shape:
                if not isinstance(dim, tirx.IntImm | tirx.Var) and not any(
                    tvm_ffi.structural_equal(dim, f) for f in found
                ):
                    found.append(dim)
    return found


def _names(func: relax.Function) -> set[str]:
    return {var.name for var in relax.analysis.defined_symbolic_vars(func)}


@relax.expr_functor.mutator
class _Resolver(Sizes):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._analyzer = tvm.sym.Analyzer()
        self._given = set(relax.analysis.defined_symbolic_vars(mod["main"])) - _named(mod["main"])

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        value = self.visit_expr(binding.value)
        found = list(casts(binding))
        given = (dim for dim, old in found if isinstance(dim, tirx.Var) and dim in self._given and not dim.same_as(old))
        if not found or next(given, None) is not None:
            super().visit_match_cast_(binding)  # an importer's: it names what is not known, or checks
            return
        if any(not isinstance(dim, tirx.Var) and not self._analyzer.can_prove_equal(dim, old) for dim, old in found):
            dims = self.replaced([dim for dim, _ in found])  # an importer's, too: it checks
            self.replace(binding.var, self.builder_.match_cast(value, relax.TensorType(dims, binding.ty.dtype)))
            return
        for (dim, old), product in zip(found, value.ty.shape.values):
            if isinstance(dim, tirx.Var) and not dim.same_as(old):
                self.sizes.setdefault(dim, product)
        self.replace(binding.var, value)
