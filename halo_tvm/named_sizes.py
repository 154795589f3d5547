"""Computed sizes of a function's tensors, as variables.

Before -> after
    f(x: [(h - 1) // 2 + 1]):  for i in range((h - 1) // 2 + 2)    ->    f(x: [size0]):  for i in range(size0 + 1)
Serves
    lowering, which would simplify the division again in each index, in a sixth less time; and what knows sizes by their
    form alone: TVM's rule for any function on a GPU fuses loops and splits what it fused, and stops where it cannot
    prove that a computed size divides itself; its C has a division in the middle of a statement
Leaves alone
    a size that is given and a number more; sizes of tensors inside, but for those that differ from a parameter's by a
    number
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr


def with_named_sizes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with a variable for each computed size of its parameters, wherever it reads that size or a sum of it."""
    dims = tensor_sizes(func)
    names: dict[int, tuple[ir.Var, int]] = {}  # by what is added to this number
    computed = [_sum(dim) for dim in dims if not isinstance(_sum(dim)[0], ir.Var | tirx.IntImm)]
    for rest, number in computed:
        names.setdefault(_key(rest), (tirx.Var(f"size{len(names)}", rest.ty.dtype), number))

    def named(expr: Expr) -> Expr:
        rest, number = _sum(expr)
        if (key := _key(rest)) not in names:
            return expr
        name, less = names[key]
        return name if number == less else name + (number - less)

    kinds = {tirx.Add, *(type(rest) for rest, _ in computed)}
    return tvm_ffi.structural_map(func, [(kind, named) for kind in kinds], order="pre") if names else func


def tensor_sizes(func: tirx.PrimFunc) -> list[Expr]:
    """The sizes of all tensors that `func` is given, in order."""
    return [dim for param in func.params if isinstance(param.ty, tirx.BufferType) for dim in param.ty.shape]


def _sum(expr: Expr) -> tuple[Expr, int]:
    """What `expr` is the sum of: something, and a number."""
    if isinstance(expr, tirx.Add) and isinstance(expr.b, tirx.IntImm):
        return expr.a, int(expr.b.value)
    return expr, 0


def _key(expr: Expr) -> int:
    """Equal for what is written alike of the same variables."""
    return int(tvm_ffi.structural_hash(expr, map_free_vars=False))
