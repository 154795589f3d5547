"""Exact products of small integers, and the numbers that go with quantised tensors."""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from ...relay_ops.linear_integer import DEEPEST, LinearInteger
from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.constant import NARROW, Constant
from ._narrow import is_narrow
from ._narrow import limits as narrow_limits
from ._node import Node
from ._spell import add, derived, multiply, number, subtract
from .matmul import dot

EXACT = 1 << 24  # whole numbers up to here are exact in float32


def vector_for(node: Node, x: relax.Expr, rank: int, axis: int) -> relax.Expr:
    """A scalar, or a vector along `axis`, shaped to broadcast to a tensor of `rank` dimensions."""
    shape = expr_shape(x)
    if len(shape) != 1:
        return x
    if isinstance(shape[0], int) and shape[0] == 1:
        is_known = isinstance(x, ir.GenericConst)
        return relax.const(x.value.numpy().reshape(()), expr_dtype(x)) if is_known else node.reshape(x, [])
    return node.reshape(x, [shape[0], *[1] * (rank - 1 - axis)])


def centred(node: Node, x: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """x - zero in int32."""
    wide = node.cast(x, "int32")
    return wide if zero is None else subtract(node, wide, node.cast(zero, "int32"))


def integer_product(
    node: Node, a: relax.Expr, b: object, a_zero: relax.Expr | None, b_zero: Constant | relax.Expr | None
) -> relax.Expr:
    """(a - a_zero) @ (b - b_zero) in int32, exactly; a and b are 8-bit integers.

    `a_zero` is one number, or broadcasts to rows of one; `b_zero` is one number, or one per column. A known matrix
    `b` is a weight of `halo.linear_integer`.
    """
    known_zero = not isinstance(b_zero, relax.Expr)
    if isinstance(b, Constant) and known_zero and len(b.shape) == 2 and len(expr_shape(a)) >= 2:
        zero = b_zero.array if isinstance(b_zero, Constant) else np.zeros(1, b.dtype)
        if b.shape[0] <= DEEPEST and zero.size in (1, b.shape[1]):
            return _by_weight(node, a, b, a_zero, zero.astype(np.int32).reshape(-1))
    right = node.graph.expr_of(b)
    zero = node.graph.expr_of(b_zero) if isinstance(b_zero, Constant) else b_zero
    left, right = centred(node, a, a_zero), centred(node, right, zero)
    depth = expr_shape(left)[-1]
    if isinstance(depth, int) and depth * 255 * 255 < EXACT:  # the same whole numbers, on kernels for float32
        return node.cast(dot(node, node.cast(left, "float32"), node.cast(right, "float32")), "int32")
    return dot(node, left, right, "int32")


def _by_weight(node: Node, a: relax.Expr, b: Constant, a_zero: relax.Expr | None, b_zero: np.ndarray) -> relax.Expr:
    a = same_sizes(node, a, [*expr_shape(a)[:-1], b.shape[0]], "rows")
    weight, rest = signed_weight(b, b_zero)
    q, zero, row_zeros = unsigned_rows(node, a, a_zero)
    total = node.emit(LinearInteger.call(q, zero, node.graph.parameter_of(weight), layout="kn", n=int(weight.shape[1])))
    if row_zeros is not None:
        sums = relax.const(weight.array.sum(0, dtype=np.int32), "int32")
        total = subtract(node, total, multiply(node, row_zeros, sums))
    if rest is not None:
        rows = node.emit(relax.op.sum(centred(node, q, zero if row_zeros is None else row_zeros), [-1], keepdims=True))
        total = subtract(node, total, multiply(node, rows, relax.const(rest, "int32")))
    return total


def signed_weight(b: Constant, zero: np.ndarray, axis: int = -1) -> tuple[Constant, np.ndarray | None]:
    """(b - rest in int8, rest [n] in int32 or None where it is 0): zero points go into the weight where that fits.

    `zero` has one number, or one for every slice of `b` along `axis`.
    """
    if b.dtype == "int8" and not zero.any():
        return b, None
    along = [-1 if d == axis % len(b.shape) else 1 for d in range(len(b.shape))]
    values = b.array.astype(np.int32) - zero.reshape(along if zero.size > 1 else [1] * len(b.shape))
    rest = None
    if values.min(initial=0) < -128 or values.max(initial=0) > 127:
        # Of the whole range of a byte that its zero point does not halve: what is left goes with the sums of rows.
        middle = 128 if b.dtype == "uint8" else 0
        rest = np.broadcast_to(zero - middle, (b.shape[axis],)).astype(np.int32)
        values = b.array.astype(np.int32) - middle
    return derived(b, lambda: values.astype(np.int8), "int8", suffix="_signed"), rest


def unsigned_rows(
    node: Node, a: relax.Expr, zero: relax.Expr | None
) -> tuple[relax.Expr, relax.Expr, relax.Expr | None]:
    """(a as uint8, what it holds for 0, the zero points of rows in int32 where there is more than one)."""
    signed = expr_dtype(a) == "int8"
    if signed:
        a = moved_to_uint8(node, a)
    if zero is None:
        return a, relax.const(128 if signed else 0, "uint8"), None
    if node.sizes.product(expr_shape(zero)) != 1:
        wide = node.cast(zero, "int32")
        wide = add(node, wide, number(128, "int32")) if signed else wide
        return a, relax.const(0, "uint8"), wide
    if isinstance(zero, ir.GenericConst):
        zero = relax.const(zero.value.numpy().reshape(()), expr_dtype(zero))
    zero = node.reshape(zero, [])
    return a, moved_to_uint8(node, zero) if signed else zero, None


def moved_to_uint8(node: Node, x: relax.Expr) -> relax.Expr:
    """x + 128: int8 -> uint8; a constant stays one."""
    if isinstance(x, ir.GenericConst):
        return relax.const((x.value.numpy().astype(np.int32) + 128).astype(np.uint8), "uint8")
    return node.cast(add(node, node.cast(x, "int32"), number(128, "int32")), "uint8")


def saturated(node: Node, x: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """round(x) + zero clipped to the range of integer `dtype`, narrow ones as they are held; x is float32,
    ties go to the even number."""
    limits = narrow_limits(dtype) if is_narrow(dtype) else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    out = node.emit(relax.op.round(x))
    if zero is not None:
        out = add(node, out, node.cast(zero, expr_dtype(x)))
    low, high = (number(float(v), expr_dtype(x)) for v in limits)
    out = node.emit(relax.op.minimum(node.emit(relax.op.maximum(out, low)), high))
    return node.cast(out, NARROW.get(dtype, dtype))
