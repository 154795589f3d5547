"""Short spellings of Relax for converters: every function binds its result, so that its type is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from ..meaning.broadcast import aligned
from ..meaning.builder import expr_dtype
from ..meaning.constant import Constant
from ..meaning.pointwise import HALVES
from ..meaning.sizes import Dim
from ._node import Node
from ._values import Value

FLOATS = ("float32", "float16", "bfloat16", "float64")


def number(value: float | int, dtype: str) -> relax.Constant:
    return relax.const(value, dtype)


def rounded(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    """float32 `x` rounded to what `dtype` can hold, still float32."""
    if dtype == "bfloat16" and expr_dtype(x) == "float32":
        return node.te(_rounded_bits, x, name="round_bfloat16")
    return x if dtype not in HALVES else node.cast(node.cast(x, dtype), expr_dtype(x))


def _rounded_bits(x: te.Tensor) -> te.Tensor:
    """Nearest bfloat16, ties to even, on the bits: TVM cannot lower two casts to bfloat16 in one kernel."""

    def value(*i):
        bits = tirx.reinterpret("uint32", x[i])
        up = tirx.const(0x7FFF, "uint32") + ((bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32"))
        return tirx.reinterpret("float32", (bits + up) & tirx.const(0xFFFF0000, "uint32"))

    return te.compute(x.shape, value, name="rounded")


def transpose(node: Node, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
    return node.emit(relax.op.permute_dims(x, list(axes)))


def concat(node: Node, xs: Sequence[relax.Expr], axis: int) -> relax.Expr:
    return xs[0] if len(xs) == 1 else node.emit(relax.op.concat(list(xs), axis))


def cut(node: Node, x: relax.Expr, axis: int, begin: Dim, end: Dim) -> relax.Expr:
    """Elements begin..end-1 of one axis."""
    return node.emit(relax.op.strided_slice(x, [axis], [begin], [end]))


def _pair(name: str, node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    left, right = aligned(node, [a, b])
    return node.emit(getattr(relax.op, name)(left, right))


def add(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return _pair("add", node, a, b)


def subtract(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return _pair("subtract", node, a, b)


def multiply(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return _pair("multiply", node, a, b)


def divide(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return _pair("divide", node, a, b)


def scaled(node: Node, x: relax.Expr, factor: float) -> relax.Expr:
    return x if factor == 1.0 else node.emit(relax.op.multiply(x, number(factor, expr_dtype(x))))


def select(node: Node, condition: relax.Expr, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.where(*aligned(node, [condition, a, b])))


def turned(node: Node, value: Value, axes: Sequence[int]) -> Value:
    """`value`, its axes in another order: a weight when it is loaded, a tensor by an operator."""
    if list(axes) == list(range(len(axes))):
        return value
    if isinstance(value, Constant):
        shape = [value.shape[a] for a in axes]
        return derived(value, lambda: np.transpose(value.array, axes), value.dtype, shape)
    return node.graph.as_value(node, transpose(node, node.graph.expr_of(value), axes))


def derived(
    weight: Constant, load: object, dtype: str, shape: Sequence[int] | None = None, suffix: str = ""
) -> Constant:
    """A constant computed from another when its values are read."""
    dims = weight.shape if shape is None else tuple(shape)
    return Constant(dims, dtype, load, f"{weight.name}{suffix}" if weight.name else "", weight.reads)
