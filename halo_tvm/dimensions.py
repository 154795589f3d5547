"""Numbers for symbolic dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import tirx

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


def is_one(dim: object) -> bool:
    """Whether a dimension is known to be 1."""
    return isinstance(dim, int | tirx.IntImm) and int(dim) == 1
