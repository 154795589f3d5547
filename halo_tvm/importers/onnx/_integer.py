"""Exact products of small integers, and the numbers that go with quantised tensors."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.constant import NARROW, Constant
from ..meaning.sizes import Dim
from ._narrow import is_narrow
from ._narrow import limits as narrow_limits
from ._node import Node
from ._spell import add, cast, cut, derived, number, subtract
from .matmul import dot, product

_EXACT = 1 << 24  # whole numbers up to here are exact in float32
_MOST_PIECES = 16


def vector_for(node: Node, x: relax.Expr, rank: int, axis: int) -> relax.Expr:
    """A scalar, or a vector along `axis`, shaped to broadcast to a tensor of `rank` dimensions."""
    shape = expr_shape(x)
    if len(shape) == 0:
        return x
    if len(shape) == 1 and isinstance(shape[0], int) and shape[0] == 1:
        return node.emit(relax.op.reshape(x, [1] * rank)) if rank else node.emit(relax.op.reshape(x, []))
    if len(shape) == 1:
        dims: list[Dim] = [1] * rank
        dims[axis] = shape[0]
        return node.emit(relax.op.reshape(x, dims))
    return x


def centred(node: Node, x: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """x - zero in int32."""
    wide = cast(node, x, "int32")
    return wide if zero is None else subtract(node, wide, cast(node, zero, "int32"))


def integer_product(
    node: Node, a: relax.Expr, b: object, a_zero: relax.Expr | None, b_zero: Constant | relax.Expr | None
) -> relax.Expr:
    """(a - a_zero) @ (b - b_zero) in int32, exactly; a and b are 8-bit integers.

    A known matrix `b` is multiplied in float32, in pieces short enough that every partial sum is a whole number
    that float32 holds: the result is the same and the product runs on the matrix kernels.
    """
    left = centred(node, a, a_zero)
    if isinstance(b, Constant) and len(b.shape) == 2 and len(expr_shape(a)) >= 2 and not isinstance(b_zero, relax.Expr):
        values = _weights(b, b_zero)
        largest = 255 * max(int(np.abs(values).max(initial=0)), 1)
        piece = _EXACT // largest
        piece -= piece % 16 if piece >= 16 else 0
        if piece and -(-b.shape[0] // piece) <= _MOST_PIECES:
            return _in_pieces(node, left, b, b_zero, piece)
    right = node.graph.expr_of(b)
    zero = node.graph.expr_of(b_zero) if isinstance(b_zero, Constant) else b_zero
    return dot(node, left, centred(node, right, zero), "int32")


def _weights(b: Constant, zero: Constant | None) -> np.ndarray:
    values = b.array.astype(np.int32)
    return values if zero is None else values - zero.array.astype(np.int32)


def _in_pieces(node: Node, left: relax.Expr, b: Constant, zero: Constant | None, piece: int) -> relax.Expr:
    depth, width = b.shape
    x = cast(node, left, "float32")
    total = None
    for begin in range(0, depth, piece):
        end = min(begin + piece, depth)
        weight = derived(
            b,
            lambda begin=begin, end=end: np.ascontiguousarray(_weights(b, zero)[begin:end]).astype(np.float32),
            "float32",
            (end - begin, width),
        )
        rows = x if (begin, end) == (0, depth) else cut(node, x, len(expr_shape(x)) - 1, begin, end)
        part = cast(node, product(node, rows, weight), "int32")
        total = part if total is None else add(node, total, part)
    return total


def saturated(node: Node, x: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """round(x) + zero clipped to the range of integer `dtype`, narrow ones as they are held; x is float32,
    ties go to the even number."""
    limits = narrow_limits(dtype) if is_narrow(dtype) else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    out = node.emit(relax.op.round(x))
    if zero is not None:
        out = add(node, out, cast(node, zero, expr_dtype(x)))
    low, high = (number(float(v), expr_dtype(x)) for v in limits)
    out = node.emit(relax.op.minimum(node.emit(relax.op.maximum(out, low)), high))
    return cast(node, out, NARROW.get(dtype, dtype))
