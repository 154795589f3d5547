"""Pow: the result has the type of the base, whatever the type of the exponent."""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from ..meaning.broadcast import aligned
from ..meaning.builder import expr_dtype
from ..meaning.pointwise import HALVES, Scalar, broadcast_shape, const_like, element, narrowed
from ._node import Node
from ._registry import converter
from .elementwise import operands


@converter("Pow")
def power(node: Node) -> relax.Expr:
    base, exponent = operands(node)
    dtype, other = expr_dtype(base), expr_dtype(exponent)
    if "float" not in dtype and "float" not in other:
        return _integer_power(node, base, exponent)
    wide = "float64" if "float64" in (dtype, other) or "float" not in dtype else "float32"
    if dtype in HALVES and wide == "float32":
        base = node.emit(relax.op.astype(base, wide))
    if node.is_known(1) and node.constant(1).size == 1:
        # A scalar: the compiler knows squares, roots and reciprocals.
        value = float(node.constant(1).reshape(-1)[0])
        if wide == "float64" and expr_dtype(base) == "float32" and value == np.float32(value):
            wide = "float32"
        exponent = relax.const(np.full(node.constant(1).shape, value), wide)
    if expr_dtype(base) != wide:
        base = node.emit(relax.op.astype(base, wide))
    if expr_dtype(exponent) != wide:
        exponent = node.emit(relax.op.astype(exponent, wide))
    return narrowed(node.emit(relax.op.power(*aligned(node, [base, exponent]))), dtype)


def _integer_power(node: Node, base: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    """By squaring, so that overflow wraps; a negative exponent gives the integer part of 1 / base^-exponent."""
    dtype = expr_dtype(base)
    if node.is_known(1) and node.constant(1).size == 1 and 0 < (count := int(node.constant(1).reshape(-1)[0])) <= 4:
        out = base
        for _ in range(count - 1):
            out = node.emit(relax.op.multiply(out, base))
        return out
    if expr_dtype(exponent) != dtype:
        exponent = node.emit(relax.op.astype(exponent, dtype))
    base, exponent = aligned(node, [base, exponent])
    shape = broadcast_shape([base, exponent])
    fold = te.comm_reducer(lambda done, factor: done * done * factor, lambda kind: tirx.const(1, kind), name="power")

    def compute(x: te.Tensor, e: te.Tensor) -> te.Tensor:
        bit = te.reduce_axis((0, np.iinfo(dtype).bits - 1), name="bit")

        def squared(*index: Scalar) -> Scalar:
            # From the highest bit of the exponent to the lowest: square, and multiply where it is set.
            a, n = element(x, index), element(e, index)
            place = tirx.const(np.iinfo(dtype).bits - 2, dtype) - bit.var.astype(dtype)
            is_set = ((n >> place) & const_like(1, n)) == const_like(1, n)
            return fold(tirx.Select(is_set, a, const_like(1, a)), axis=bit)

        powers = te.compute(shape, squared, name="squares")

        def signed(*index: Scalar) -> Scalar:
            a, n = element(x, index), element(e, index)
            one, odd = const_like(1, a), (n & const_like(1, n)) == const_like(1, n)
            inverse = tirx.Select(a == one, one, const_like(0, a))
            inverse = tirx.Select(a == const_like(-1, a), tirx.Select(odd, const_like(-1, a), one), inverse)
            return tirx.Select(n < const_like(0, n), inverse, powers(*index))

        return te.compute(shape, signed, name="power")

    return node.te(compute, base, exponent, name="onnx_pow")
