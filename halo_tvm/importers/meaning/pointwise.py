"""Operators given as a function of one element of each operand: broadcast, and carried out in a sufficient type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax, te, tirx

from ...dimensions import is_one
from .broadcast import aligned
from .builder import Builder, expr_dtype, expr_shape
from .sizes import Dim

Scalar = tvm.ir.Expr
HALVES = ("float16", "bfloat16")


def pointwise(builder: Builder, function: Callable[..., Scalar], *xs: relax.Expr, name: str = "") -> relax.Expr:
    """function(element of every x), broadcast as NumPy does. The function sees the elements' own types."""
    xs = tuple(aligned(builder, xs))
    shape = broadcast_shape(xs)

    def compute(*tensors: te.Tensor) -> te.Tensor:
        def value(*index: Scalar) -> Scalar:
            return function(*(element(t, index, shape) for t in tensors))

        return te.compute(shape, value, name=name or builder.op.lower())

    return builder.te(compute, *xs, name=name)


def broadcast_shape(xs: Sequence[relax.Expr]) -> list[Dim]:
    """The shape of operands that are aligned."""
    rank = max(len(expr_shape(x)) for x in xs)
    out: list[Dim] = [1] * rank
    for x in xs:
        for axis, dim in enumerate(expr_shape(x), rank - len(expr_shape(x))):
            if isinstance(out[axis], int) and out[axis] == 1:
                out[axis] = dim
    return out


def element(tensor: te.Tensor, index: Sequence[Scalar], shape: Sequence[Dim]) -> Scalar:
    """The element of an aligned operand that meets `index` of the result, which has `shape`.

    An axis of size one that the result has, too, is read at the result's place: so TVM sees a stage of what makes it.
    """
    first = len(index) - len(tensor.shape)
    places = zip(index[first:], tensor.shape, shape[first:])
    return tensor(*(0 if is_one(own) and not is_one(whole) else i for i, own, whole in places))


def in_float32(function: Callable[..., Scalar]) -> Callable[..., Scalar]:
    """`function` of floating-point elements, carried out in float32 where they are shorter."""

    def wrapped(*xs: Scalar) -> Scalar:
        dtype = dtype_of(xs[0])
        if dtype not in HALVES:
            return function(*xs)
        return function(*(x.astype("float32") for x in xs)).astype(dtype)

    return wrapped


def widened(builder: Builder, x: relax.Expr) -> relax.Expr:
    """A tensor of float16 or bfloat16 as float32; any other as it is."""
    return builder.emit(relax.op.astype(x, "float32")) if expr_dtype(x) in HALVES else x


def dtype_of(x: Scalar) -> str:
    """The type of an element."""
    return str(x.dtype if hasattr(x, "dtype") else x.ty.dtype)


def const(value: float | int | bool | np.generic, dtype: str) -> Scalar:
    return tirx.const(value, dtype)


def const_like(value: float | int, x: Scalar) -> Scalar:
    return tirx.const(value, dtype_of(x))
