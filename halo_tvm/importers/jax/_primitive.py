"""One equation of a jaxpr while it is converted: its operands, its result's type, and what to emit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from ...dimensions import is_one
from ...relay_ops.operator import op_name
from ..meaning.builder import Builder, Refused, expr_shape
from ..meaning.constant import Constant, numpy_dtype
from ..meaning.sizes import Dim
from ._values import Spread, Value

if TYPE_CHECKING:
    from ._walk import Walker

_DTYPES = frozenset("float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split())


def dtype_name(dtype: object) -> str:
    """A dtype of jax as TVM spells it; `Refused` for one that has no tensors here."""
    name = str(dtype)
    if name not in _DTYPES:
        raise Refused(f"dtype {name}")
    return name


class Primitive(Builder):
    """The equation's parameters by name, its operands by position."""

    def __init__(self, walker: Walker, eqn: Any, values: Sequence[Value]) -> None:
        self.walker = walker
        self.block, self.sizes = walker.builder, walker.sizes
        self.eqn, self.values = eqn, list(values)
        self.params: dict[str, Any] = eqn.params
        self.op: str = eqn.primitive.name.replace("-", "_")
        self.name: str = walker.place_of(eqn)

    # Types.

    @property
    def shape(self) -> list[Dim]:
        return self.shape_out(0)

    def shape_out(self, index: int) -> list[Dim]:
        return self.walker.dims.shape(self.eqn.outvars[index].aval.shape)

    @property
    def dtype(self) -> str:
        return dtype_name(self.eqn.outvars[0].aval.dtype)

    def shape_of(self, index: int) -> list[Dim]:
        return self.walker.dims.shape(self.eqn.invars[index].aval.shape)

    def dtype_of(self, index: int) -> str:
        return dtype_name(self.eqn.invars[index].aval.dtype)

    def rank(self, index: int = 0) -> int:
        return len(self.eqn.invars[index].aval.shape)

    # Operands.

    def x(self, index: int = 0) -> relax.Expr:
        """The operand `index` in its whole shape."""
        return self.walker.expr_of(self.values[index])

    def operand(self, index: int) -> relax.Expr:
        """The operand `index` for an operator that broadcasts: in as few elements as it has."""
        value = self.values[index]
        return self.walker.expr_of(value.small if isinstance(value, Spread) else value)

    def constant(self, index: int) -> Constant | None:
        """The operand `index` where its values are known."""
        value = self.values[index]
        return value if isinstance(value, Constant) else None

    def number(self, index: int) -> float | int | bool | None:
        """The one number that the operand `index` repeats, where it is known."""
        value = self.values[index]
        value = value.small if isinstance(value, Spread) else value
        if not isinstance(value, Constant) or int(np.prod(value.shape, dtype=np.int64)) != 1:
            return None
        return value.array.reshape(-1)[0].item()  # type: ignore[no-any-return]

    # What to emit.

    def emit(self, expr: relax.Expr) -> relax.Var:
        return self.walker.emit(expr, self.name)

    def known(self, x: relax.Expr) -> Constant | None:
        return self.walker.constants.get(x)

    def weight(self, value: Constant) -> relax.Expr:
        return self.walker.expr_of(value)

    def spread(self, small: relax.Expr | Constant, shape: Sequence[Dim]) -> Value:
        """`small` as a value of `shape`, which it broadcasts to."""
        own = small.shape if isinstance(small, Constant) else expr_shape(small)
        return small if self.sizes.same_shape(own, shape) else Spread(small, tuple(shape))

    def reshape(self, x: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """`x` in another shape; two in a row are one, and none where they cancel."""
        inner = self.bound_to(x)
        joined = op_name(inner) == "relax.reshape" and inner.args[0].ty.ndim
        return super().reshape(inner.args[0] if joined else x, shape)

    def permute(self, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
        """permute_dims; two in a row are one, and one that moves axes of size 1 only is a reshape."""
        x, axes = self.one_permutation(x, axes)
        shape = expr_shape(x)
        moved = [a for a in axes if not is_one(shape[a])]
        if moved == sorted(moved):
            return self.reshape(x, [shape[a] for a in axes])
        return self.emit(relax.op.permute_dims(x, axes))

    def scalar(self, value: object, dtype: str) -> relax.Expr:
        return relax.const(np.asarray(value).astype(numpy_dtype(dtype)), dtype)
