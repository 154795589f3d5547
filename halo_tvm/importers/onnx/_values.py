"""What a name of an ONNX graph stands for while its graph is imported.

Most names are tensors that exist at run time. A small integer tensor that depends on dimensions only is kept as a
list of symbolic expressions: that folds the shape arithmetic of exporters, so no operator of it reaches Relax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import tvm
from tvm import relax, tirx

# Types of less than a byte -> the type that holds an element inside a graph.
NARROW = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8", "float4_e2m1fn": "uint8"}
Dim = int | tvm.ir.Expr  # one size: a number, or an expression of symbolic dimensions


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor at run time; its rank and dimensions are known, its values are not."""

    expr: relax.Expr
    narrow: str = ""  # its ONNX type, where that is of less than a byte (see `_narrow`)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(plain(d) for d in self.expr.ty.shape.values)

    @property
    def dtype(self) -> str:
        return self.narrow or str(self.expr.ty.dtype)


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose values are known now; `load` reads them, so that large weights stay on disk until needed."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray] = field(repr=False)
    name: str = ""

    @classmethod
    def of(cls, array: np.ndarray, name: str = "") -> Constant:
        return cls(array.shape, dtype_name(array.dtype), lambda: array, name)

    @cached_property
    def array(self) -> np.ndarray:
        return self.load()

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * numpy_dtype(self.dtype).itemsize


@dataclass(frozen=True, eq=False)
class Symbolic:
    """A small integer or boolean tensor of known shape whose elements are expressions of symbolic dimensions."""

    array: np.ndarray  # of dtype object; elements are Dim
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape


@dataclass(frozen=True, eq=False)
class Sequence:
    """An ONNX sequence whose length is known now."""

    items: tuple[Value, ...]


Value = Tensor | Constant | Symbolic | Sequence


def plain(dim: tvm.ir.Expr | int) -> Dim:
    """An IntImm as int; anything else as it is."""
    return int(dim) if isinstance(dim, int | np.integer | tirx.IntImm) else dim


def elements(value: Constant | Symbolic) -> np.ndarray:
    """The elements of a small known tensor as an array of objects: int or expression."""
    if isinstance(value, Symbolic):
        return value.array
    out = np.empty(value.shape, dtype=object)
    flat = value.array.reshape(-1).tolist()
    for position, element in enumerate(flat):
        out.reshape(-1)[position] = element
    return out


def known(array: np.ndarray, dtype: str) -> Constant | Symbolic:
    """An array of objects as the simplest kind of value that holds it."""
    items = [plain(e) for e in array.reshape(-1)]
    if all(isinstance(e, bool | int | float | np.generic) for e in items):
        return Constant.of(np.array(items, dtype=dtype).reshape(array.shape))
    out = np.empty(array.shape, dtype=object)
    for position, element in enumerate(items):
        out.reshape(-1)[position] = element
    return Symbolic(out, dtype)


def dtype_name(dtype: np.dtype) -> str:
    """A NumPy dtype as TVM spells it."""
    return "bool" if dtype == np.bool_ else dtype.name


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's type of that name; ml_dtypes has what NumPy has not."""
    if dtype == "bfloat16" or dtype.startswith("float8") or dtype in NARROW:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype))
    return np.dtype(dtype)
