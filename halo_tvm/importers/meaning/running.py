"""Results so far along an axis: the extreme, where it was, the logarithm of a sum of exponentials.

Each is a recurrence, a step for every element: y[k] = f(y[k - 1], x[k]).
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from ...extremes import maximum, minimum
from ...relay_ops.parts.in_order import Combine, running
from .builder import Builder, expr_dtype
from .pointwise import Scalar, const_like
from .scalar import log1p


def running_extreme(b: Builder, x: relax.Expr, axis: int, *, largest: bool) -> relax.Expr:
    """The largest or smallest of x[0], .., x[k] along `axis`; a NaN stays."""
    extreme = maximum if largest else minimum
    # The new element first: whether it is NaN is asked before the result of the last step is there.
    return _recurrence(b, x, axis, lambda old, new: extreme(new, old), "cummax" if largest else "cummin")


def running_places(b: Builder, x: relax.Expr, extreme: relax.Expr, axis: int) -> relax.Expr:
    """int64: where `extreme`, which is `running_extreme` of `x`, was found; of equal ones, and of NaN, the last."""

    def places(x: te.Tensor, extreme: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Scalar:
            here = i[axis].astype("int64")
            value = x(*i)
            found = value == extreme(*i)
            if "float" in str(x.dtype):  # TVM asks no bfloat16 whether it is NaN
                found = tirx.any(found, tirx.isnan(value.astype("float32") if str(x.dtype) == "bfloat16" else value))
            return tirx.Select(found, here, tirx.const(0, "int64"))

        return te.compute(x.shape, element, name="places")

    return _recurrence(b, b.te(places, x, extreme), axis, tirx.max, "last_place")


def running_log_sum_exp(b: Builder, x: relax.Expr, axis: int) -> relax.Expr:
    """log(exp(x[0]) + .. + exp(x[k])) along `axis`, of floats."""
    return _recurrence(b, x, axis, log_add_exp, "cumlogsumexp")


def log_add_exp(a: Scalar, b: Scalar) -> Scalar:
    """log(exp(a) + exp(b)): the larger one, and log(1 + exp(-distance)). The distance of equal infinities is 0."""
    zero = const_like(0, a)
    distance = tirx.Select(a == b, zero, tirx.abs(a - b))
    return maximum(a, b) + log1p(tirx.exp(-distance))


def _recurrence(b: Builder, x: relax.Expr, axis: int, step: Combine, name: str) -> relax.Expr:
    dtype = expr_dtype(x)
    return b.te(lambda x: running(x, axis, dtype, False, step, 0), x, name=name)
