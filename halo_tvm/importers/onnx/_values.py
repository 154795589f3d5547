"""What a name of an ONNX graph stands for while its graph is imported.

Most names are tensors that exist at run time. A small integer tensor that depends on dimensions only is kept as a
list of symbolic expressions: that folds the shape arithmetic of exporters, so no operator of it reaches Relax.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from tvm import relax

from ..meaning.constant import Constant
from ..meaning.sizes import Dim, plain


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


def element_dtype(kind: int) -> str:
    """The dtype of a number of TensorProto.DataType; KeyError for one that this onnx does not know."""
    return str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).name)


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
