"""Reductions whose meaning is more than a sum: positions of extremes, the logarithm of a sum of exponentials."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax, te, tirx

from .builder import Builder, expr_dtype, expr_shape
from .pointwise import Scalar, const, const_like, narrowed, pointwise, widened


def arg_index(builder: Builder, x: relax.Expr, axis: int, *, largest: bool, last: bool = False) -> relax.Expr:
    """Position of the first (or last) extreme along `axis`, int64, the axis kept; NaN counts as extreme."""
    shape = expr_shape(x)
    builder.refuse_unless(
        not (isinstance(shape[axis], int) and shape[axis] == 0), "expected elements along its axis, found none"
    )
    is_float = "float" in expr_dtype(x)

    def wins(a: tuple[Scalar, Scalar], b: tuple[Scalar, Scalar]) -> Scalar:
        ahead = a[1] > b[1] if largest else a[1] < b[1]
        tie = a[1] == b[1]
        if is_float:
            ahead = tirx.any(ahead, tirx.all(tirx.isnan(a[1]), tirx.Not(tirx.isnan(b[1]))))
            tie = tirx.any(tie, tirx.all(tirx.isnan(a[1]), tirx.isnan(b[1])))
        return tirx.any(ahead, tirx.all(tie, a[0] > b[0] if last else a[0] < b[0]))

    def combine(a: tuple[Scalar, Scalar], b: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        take = wins(a, b)
        return tirx.Select(take, a[0], b[0]), tirx.Select(take, a[1], b[1])

    def identity(index: str, value: str) -> tuple[Scalar, Scalar]:
        lowest = const(-math.inf if largest else math.inf, value) if is_float else None
        if lowest is None:
            info = np.iinfo(value)
            lowest = const(int(info.min if largest else info.max), value)
        return const(-1 if last else np.iinfo(np.int64).max, index), lowest

    extreme = te.comm_reducer(combine, identity, name="extreme")

    def compute(x: te.Tensor) -> te.Tensor:
        along = te.reduce_axis((0, x.shape[axis]), name="k")

        def element(*index: Scalar) -> tuple[Scalar, Scalar]:
            place = [along.var if i == axis else v for i, v in enumerate(index)]
            return extreme((along.var.astype("int64"), x(*place)), axis=along)

        pairs = te.compute([1 if i == axis else d for i, d in enumerate(x.shape)], element, name="extremes")
        return te.compute(pairs[0].shape, lambda *i: pairs[0](*i), name="index")

    wide = widened(builder, x)
    if expr_dtype(wide) == "bool":
        wide = builder.emit(relax.op.astype(wide, "uint8"))
        is_float = False
    return builder.te(compute, wide)


def log_sum_exp(builder: Builder, x: relax.Expr, axes: list[int]) -> relax.Expr:
    """log(sum(exp(x))) along `axes`, which are kept with one element.

    The largest element is taken out, so that nothing overflows; an infinite one is left in.
    """
    dtype = expr_dtype(x)
    x = widened(builder, x)
    top = builder.emit(relax.op.max(x, axes, True))
    infinite = const(math.inf, expr_dtype(x))
    top = pointwise(builder, lambda v: tirx.Select(tirx.abs(v) == infinite, const_like(0, v), v), top, name="finite")
    shifted = builder.emit(relax.op.exp(builder.emit(relax.op.subtract(x, top))))
    total = builder.emit(relax.op.log(builder.emit(relax.op.sum(shifted, axes, True))))
    return builder.emit(narrowed(builder.emit(relax.op.add(total, top)), dtype))
