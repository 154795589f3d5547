"""Numbers for symbolic dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import relax, tirx

UNKNOWN = 128  # what a symbol counts as when nothing is known of it


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
