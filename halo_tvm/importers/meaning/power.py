"""Powers of integers."""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from .broadcast import aligned
from .builder import Builder, expr_dtype
from .pointwise import Scalar, broadcast_shape, const_like, element


def power_of_integers(builder: Builder, base: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    """By squaring, so that overflow wraps; a negative exponent gives the integer part of 1 / base^-exponent."""
    dtype = expr_dtype(base)
    known = builder.known(exponent)
    if known is not None and known.shape in ((), (1,)) and 0 < (count := int(known.array.reshape(-1)[0])) <= 4:
        out = base
        for _ in range(count - 1):
            out = builder.emit(relax.op.multiply(out, base))
        return out
    base, exponent = aligned(builder, [base, builder.cast(exponent, dtype)])
    shape = broadcast_shape([base, exponent])
    fold = te.comm_reducer(lambda done, factor: done * done * factor, lambda kind: tirx.const(1, kind), name="power")

    def compute(x: te.Tensor, e: te.Tensor) -> te.Tensor:
        bit = te.reduce_axis((0, np.iinfo(dtype).bits - 1), name="bit")

        def squared(*index: Scalar) -> Scalar:
            # From the highest bit of the exponent to the lowest: square, and multiply where it is set.
            a, n = element(x, index, shape), element(e, index, shape)
            place = tirx.const(np.iinfo(dtype).bits - 2, dtype) - bit.var.astype(dtype)
            is_set = ((n >> place) & const_like(1, n)) == const_like(1, n)
            return fold(tirx.Select(is_set, a, const_like(1, a)), axis=bit)

        powers = te.compute(shape, squared, name="squares")

        def signed(*index: Scalar) -> Scalar:
            a, n = element(x, index, shape), element(e, index, shape)
            one, odd = const_like(1, a), (n & const_like(1, n)) == const_like(1, n)
            inverse = tirx.Select(a == one, one, const_like(0, a))
            inverse = tirx.Select(a == const_like(-1, a), tirx.Select(odd, const_like(-1, a), one), inverse)
            return tirx.Select(n < const_like(0, n), inverse, powers(*index))

        return te.compute(shape, signed, name="power")

    return builder.te(compute, base, exponent, name="power")
