"""Tensors inside a group of functions whose makers and readers spell their sizes in different ways.

FuseTIR makes one buffer of what one function writes and another one reads, and asks that both spell its sizes alike:
n + 312 and n + 200 + 112, or 1 and a variable that is 1 here, are the same size and end it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .graph_pass import bindings, makes_tensor

Shape = list[ir.Expr]


def readers_of_other_spellings(group: relax.Function, mod: tvm.IRModule) -> set[str]:
    """The functions in `group` that read a tensor of its own whose sizes its maker spells otherwise."""
    made: dict[relax.Var, Shape] = {}
    found = set()
    for binding in bindings(group):
        call = binding.value
        if not makes_tensor(call):
            continue
        func, args = mod[call.args[0]], list(call.args[1].fields)
        *given, written = _shapes(func, [*(arg.ty for arg in args), call.ty_args[0]], args)
        if any(arg in made and shape and not _alike(shape, made[arg]) for arg, shape in zip(args, given)):
            found.add(call.args[0].name_hint)
        made[binding.var] = written
    return found


def _shapes(func: tirx.PrimFunc, types: Sequence[ir.Type], args: Sequence[relax.Expr]) -> list[Shape]:
    """The sizes of each parameter of `func`, with the caller's variables in place of its own; none of a number."""
    sizes: dict[tirx.Var, ir.Expr] = {}
    for param, ty in zip(func.params, types):
        if isinstance(getattr(ty, "shape", None), relax.ShapeExpr):
            for own, size in zip(param.shape, ty.shape.values):
                if isinstance(own, tirx.Var):
                    sizes.setdefault(own, size)
    for param, arg in zip(func.params, args):
        if isinstance(param, tirx.Var) and isinstance(arg.ty, ir.PrimType):
            sizes.setdefault(param, arg)

    def in_caller(dim: ir.Expr) -> ir.Expr:
        return tvm_ffi.structural_map(dim, (tirx.Var, lambda var: sizes.get(var, var)))

    buffers = (isinstance(param.ty, tirx.BufferType) for param in func.params)
    return [[in_caller(d) for d in param.shape] if is_buffer else [] for param, is_buffer in zip(func.params, buffers)]


def _alike(shape: Shape, other: Shape) -> bool:
    return len(shape) == len(other) and all(map(tvm_ffi.structural_equal, shape, other))
