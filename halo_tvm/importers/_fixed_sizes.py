"""Kernels that an importer made for open sizes, once a user has fixed them.

Before -> after
    call_tir(log1p, x: [3, 9])    log1p(a: [batch, 9], b: [batch, 9])    ->    log1p(a: [3, 9], b: [3, 9])
Without it a kernel and its neighbours, which the operators of the model become, spell the sizes of one tensor in two
ways, and FuseTIR ends at them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import ir, relax, tirx

from ..relay_ops.operator import op_name

_CALLS = ("relax.call_tir", "relax.call_tir_inplace")
Sizes = tuple[int | None, ...]


def with_fixed_sizes(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose kernels have the sizes that main gives them; several of one kernel where main gives it several."""
    fixed = _Fixed(mod)
    main = fixed.visit_expr(mod["main"])
    out = fixed.builder_.get()
    out["main"] = main
    for gvar in fixed.replaced - fixed.kept:
        del out[gvar]
    return out


@relax.expr_functor.mutator
class _Fixed(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._made: dict[tuple[ir.GlobalVar, tuple[tuple[int, int], ...], tuple[Sizes, ...]], ir.GlobalVar] = {}
        self.replaced: set[ir.GlobalVar] = set()
        self.kept: set[ir.GlobalVar] = set()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if op_name(call) not in _CALLS:
            return call
        gvar, given, *rest = call.args
        func = self._mod[gvar]
        numbers = tuple((i, int(field)) for i, field in enumerate(given.fields) if isinstance(field, tirx.IntImm))
        fields = [field for field in given.fields if not isinstance(field, tirx.IntImm)]
        outs = [out for ty in call.ty_args for out in getattr(ty, "fields", [ty])]
        shapes = tuple(_sizes(ty) for ty in (*(field.ty for field in fields), *outs))
        if not numbers and not any(_changed(param, shape) for param, shape in zip(func.params, shapes)):
            self.kept.add(gvar)
            return call
        self.replaced.add(gvar)
        key = (gvar, numbers, shapes)
        if key not in self._made:
            self._made[key] = self.builder_.add_func(_fixed(func, dict(numbers), shapes), gvar.name_hint)
        return relax.Call(call.op, [self._made[key], relax.Tuple(fields), *rest], call.attrs, call.ty_args)


def _sizes(ty: relax.Type) -> Sizes:
    """The sizes of a tensor's type as far as they are numbers."""
    if not isinstance(getattr(ty, "shape", None), relax.ShapeExpr):
        return ()
    return tuple(int(size) if isinstance(size, tirx.IntImm) else None for size in ty.shape.values)


def _changed(param: ir.Var, shape: Sizes) -> bool:
    """Whether a variable is a size of `param` that `shape` knows."""
    return isinstance(param.ty, tirx.BufferType) and any(
        isinstance(own, tirx.Var) and size is not None for own, size in zip(param.shape, shape)
    )


def _fixed(func: tirx.PrimFunc, numbers: Mapping[int, int], shapes: Sequence[Sizes]) -> tirx.PrimFunc:
    """`func` without the integers at the places `numbers`, its tensors of the sizes `shapes` where these are known."""
    # One behind the other: a size that is computed of a number may be no variable before it is known.
    given = {func.params[i]: tirx.const(value, str(func.params[i].ty.dtype)) for i, value in numbers.items()}
    func = func.specialize(given) if given else func
    tensors = {}
    for param, shape in zip(func.params, shapes):
        if _changed(param, shape) and all(isinstance(own, tirx.Var | tirx.IntImm) for own in param.shape):
            dims = [
                own if size is None else tirx.const(size, str(own.ty.dtype)) for own, size in zip(param.shape, shape)
            ]
            tensors[param] = tirx.decl_buffer(dims, param.dtype, name=param.name)
    return func.specialize(tensors) if tensors else func
