"""Symbolic dimensions: numbers for them, and their text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import tvm
import tvm_ffi
from tvm import relax, tirx

UNKNOWN = 128  # what a symbol counts as when nothing is known of it

# How operators are written, and how closely each binds.
_INFIX = {
    tirx.Add: ("+", 1),
    tirx.Sub: ("-", 1),
    tirx.Mul: ("*", 2),
    tirx.FloorDiv: ("//", 2),
    tirx.FloorMod: ("%", 2),
}


def text_of(dim: tvm.ir.Expr | int) -> int | str:
    """A dimension as shapes of a manifest have it: a number, its own name, or how it is computed, as `2 * p + 1`.

    Equal only for what is computed alike of dimensions of equal names. `artifact.size_at` reads + - * // % min max
    back. TVM's printer would rename letters that are its own (T becomes T_1) and write all letters beyond ASCII as _.
    """
    return int(dim) if isinstance(dim, int | tirx.IntImm) else _text(dim)


def _text(expr: tvm.ir.Expr, binding: int = 0) -> str:
    """`expr`, in parentheses where it binds less than `binding`."""
    if isinstance(expr, tirx.Var):
        return str(expr.name)
    if isinstance(expr, tirx.IntImm | tirx.FloatImm):
        return str(expr.value)
    if type(expr) in _INFIX:
        word, own = _INFIX[type(expr)]
        text = f"{_text(expr.a, own)} {word} {_text(expr.b, own + 1)}"
        return f"({text})" if own < binding else text
    if isinstance(expr, tvm.ir.Call):
        name = expr.op.name.rpartition(".")[2] if isinstance(expr.op, tvm.ir.Op) else str(expr.op)
        return f"{name}({', '.join(_text(arg) for arg in expr.args)})"
    if isinstance(expr, tirx.Cast):
        return f"{expr.ty.dtype}({_text(expr.value)})"
    fields = ("condition", "true_value", "false_value", "a", "b")
    parts = [_text(getattr(expr, field)) for field in fields if hasattr(expr, field)]
    return f"{type(expr).__name__.lower()}({', '.join(parts)})" if parts else str(expr)


def itemsize_of(dtype: object) -> int:
    """Bytes of one element of a TVM dtype, also of those NumPy does not know."""
    return (tvm_ffi.dtype(str(dtype)).bits + 7) // 8


def size_of(dim: tvm.ir.Expr, sizes: Mapping[str, int]) -> int:
    """A dimension with its symbols replaced by `sizes` by name."""
    if isinstance(dim, tirx.IntImm):
        return int(dim)
    bound = tvm_ffi.structural_map(dim, (tirx.Var, lambda v: tirx.IntImm("int64", sizes.get(v.name, UNKNOWN))))
    return int(tvm.sym.Analyzer().simplify(bound))


def by_name(sizes: Mapping[tirx.Var, int]) -> dict[str, int]:
    """Sizes as `size_of` reads them."""
    return {str(var.name): size for var, size in sizes.items()}


def tensor_bytes(ty: relax.Type, sizes: Mapping[str, int]) -> list[int]:
    """Bytes of a tensor, or of each of a tuple, of known shape; symbols as `size_of` has them."""
    tensors = ty.fields if isinstance(ty, relax.TupleType) else [ty]
    return [
        math.prod(size_of(d, sizes) for d in tensor.shape.values) * itemsize_of(tensor.dtype)
        for tensor in tensors
        if isinstance(tensor, relax.TensorType) and isinstance(tensor.shape, relax.ShapeExpr)
    ]


def product(dims: Iterable[tvm.ir.Expr]) -> tvm.ir.Expr:
    """The product of dimensions, 1 for none."""
    total: tvm.ir.Expr = tirx.IntImm("int64", 1)
    for dim in dims:
        total = total * dim
    return tvm.sym.Analyzer().simplify(total)


def is_one(dim: object) -> bool:
    """Whether a dimension is known to be 1."""
    return isinstance(dim, int | tirx.IntImm) and int(dim) == 1


def differ(a: object, b: object) -> bool:
    """Whether two dimensions are surely different; unknown ones are not."""
    a, b = (int(x.value) if isinstance(x, tirx.IntImm) else x for x in (a, b))
    return isinstance(a, int) and isinstance(b, int) and a != b


def integers_of(expr: relax.Expr) -> list[int] | None:
    """The numbers of a shape or of a tuple of prime values; None where one is not known."""
    fields = expr.values if isinstance(expr, relax.ShapeExpr) else getattr(expr, "fields", None)
    if fields is None:
        return None
    values = [getattr(field, "value", field) for field in fields]
    return [int(v) for v in values] if all(isinstance(v, (int, tirx.IntImm)) for v in values) else None
