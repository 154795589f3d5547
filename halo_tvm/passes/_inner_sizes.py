"""Tensors of a group of functions whose makers and readers spell their sizes in different ways.

FuseTIR makes one buffer of what one function writes and another one reads, and asks that both spell its sizes alike:
n + 312 and n + 200 + 112, or 1 and a variable that is 1 here, are the same size and end it. What the group is given it
compares by parts: n * m where a function says m * n makes n of that function's m, in all of its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .graph_pass import bindings, makes_tensor

Shape = list[ir.Expr]


def readers_of_other_spellings(group: relax.Function, mod: tvm.IRModule) -> set[str]:
    """The functions in `group` that read a tensor whose sizes its maker, or who calls the group, spells otherwise."""
    made: dict[relax.Var, Shape] = {}
    found = set()
    for binding in bindings(group):
        call = binding.value
        if not makes_tensor(call):
            continue
        func, args = mod[call.args[0]], list(call.args[1].fields)
        sizes = _sizes(func, [*(arg.ty for arg in args), call.ty_args[0]], args)
        *given, written = _shapes(func, sizes)
        for arg, param, shape in zip(args, func.params, given):
            if shape and (not _alike(shape, made[arg]) if arg in made else _confused(param.shape, arg, sizes)):
                found.add(call.args[0].name_hint)
        made[binding.var] = written
    return found


def _sizes(func: tirx.PrimFunc, types: Sequence[ir.Type], args: Sequence[relax.Expr]) -> dict[tirx.Var, ir.Expr]:
    """What the variables of `func` are in its caller."""
    sizes: dict[tirx.Var, ir.Expr] = {}
    for param, ty in zip(func.params, types):
        if isinstance(getattr(ty, "shape", None), relax.ShapeExpr):
            for own, size in zip(param.shape, ty.shape.values):
                if isinstance(own, tirx.Var):
                    sizes.setdefault(own, size)
    for param, arg in zip(func.params, args):
        if isinstance(param, tirx.Var) and isinstance(arg.ty, ir.PrimType):
            sizes.setdefault(param, arg)
    return sizes


def _shapes(func: tirx.PrimFunc, sizes: Mapping[tirx.Var, ir.Expr]) -> list[Shape]:
    """The sizes of each parameter of `func`, with the caller's variables in place of its own; none of a number."""

    def in_caller(dim: ir.Expr) -> ir.Expr:
        return tvm_ffi.structural_map(dim, (tirx.Var, lambda var: sizes.get(var, var)))

    buffers = (isinstance(param.ty, tirx.BufferType) for param in func.params)
    return [[in_caller(d) for d in param.shape] if is_buffer else [] for param, is_buffer in zip(func.params, buffers)]


def _confused(own: Sequence[ir.Expr], arg: relax.Expr, sizes: Mapping[tirx.Var, ir.Expr]) -> bool:
    """Whether a comparison by parts makes something else of a variable in `own` than `sizes` say."""
    shape = getattr(arg.ty, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and any(_differs(a, b, sizes) for a, b in zip(own, shape.values))


def _differs(own: ir.Expr, size: ir.Expr, sizes: Mapping[tirx.Var, ir.Expr]) -> bool:
    if isinstance(own, tirx.Var):
        return own in sizes and not tvm_ffi.structural_equal(sizes[own], size)
    if type(own) is not type(size) or not hasattr(own, "a"):
        return False
    return _differs(own.a, size.a, sizes) or _differs(own.b, size.b, sizes)


def _alike(shape: Shape, other: Shape) -> bool:
    return len(shape) == len(other) and all(map(tvm_ffi.structural_equal, shape, other))
