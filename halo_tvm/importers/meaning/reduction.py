"""Reductions: what they begin with, positions of extremes, the logarithm of a sum of exponentials."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax, te, tirx

from .builder import Builder, expr_dtype, expr_shape
from .pointwise import Scalar, const, const_like, pointwise, widened

_NOWHERE = 2**31 - 1
_UNITS = {"sum": 0, "add": 0, "prod": 1, "mul": 1}


def neutral(kind: str, dtype: str) -> float | int | bool:
    """What changes nothing that is joined to it by `kind`: sum or add, prod or mul, max, min."""
    if kind in _UNITS:
        return _UNITS[kind]
    if "float" in dtype:
        return -math.inf if kind == "max" else math.inf
    if dtype == "bool":
        return kind == "min"
    info = np.iinfo(dtype)
    return int(info.min if kind == "max" else info.max)


def arg_index(builder: Builder, x: relax.Expr, axis: int, *, largest: bool, last: bool = False) -> relax.Expr:
    """Position of the first (or last) extreme along `axis`, int64, the axis kept; NaN counts as extreme.

    The extreme is found first: then both passes are reductions of single numbers, which vectors do.
    """
    shape = expr_shape(x)
    builder.refuse_unless(
        not (isinstance(shape[axis], int) and shape[axis] == 0), "expected elements along its axis, found none"
    )
    wide = widened(builder, x)
    if expr_dtype(wide) == "bool":
        wide = builder.emit(relax.op.astype(wide, "uint8"))
    extreme = builder.emit((relax.op.max if largest else relax.op.min)(wide, [axis], keepdims=True))
    nowhere = -1 if last else _NOWHERE
    combine = te.comm_reducer(
        lambda a, b: tirx.max(a, b) if last else tirx.min(a, b), lambda dtype: const(nowhere, dtype), name="place"
    )
    is_float = "float" in expr_dtype(wide)

    def compute(x: te.Tensor, extreme: te.Tensor) -> te.Tensor:
        along = te.reduce_axis((0, x.shape[axis]), name="k")

        def element(*index: Scalar) -> Scalar:
            value = x(*(along.var if i == axis else v for i, v in enumerate(index)))
            found = value == extreme(*(0 if i == axis else v for i, v in enumerate(index)))
            found = tirx.any(found, tirx.isnan(value)) if is_float else found
            place = tirx.Select(found, along.var.astype("int32"), const(nowhere, "int32"))
            return combine(place, axis=along)

        places = te.compute(extreme.shape, element, name="place")
        return te.compute(places.shape, lambda *i: places(*i).astype("int64"), name="index")

    return builder.te(compute, wide, extreme)


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
    return builder.cast(builder.emit(relax.op.add(total, top)), dtype)
