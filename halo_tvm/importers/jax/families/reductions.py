"""Sums, extremes and scans along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te

from ...meaning.builder import expr_dtype, expr_shape
from ...meaning.pointwise import Scalar, const, widened
from ...meaning.reduction import arg_index, neutral
from ...meaning.running import running_extreme, running_log_sum_exp
from .._primitive import Primitive
from .._registry import converter
from .._values import Value

_REDUCTIONS: dict[str, Callable[..., relax.Expr]] = {
    "reduce_sum": relax.op.sum,
    "reduce_prod": relax.op.prod,
    "reduce_max": relax.op.max,
    "reduce_min": relax.op.min,
    "reduce_or": relax.op.max,
    "reduce_and": relax.op.min,
}


@converter(*_REDUCTIONS)
def reduce(c: Primitive) -> Value:
    """The axes stay, of size 1, until they are dropped: lifts read that. Halves are summed in float32."""
    axes = [int(a) for a in c.params["axes"]]
    if not axes:
        return c.values[0]
    x, dtype = c.x(), c.dtype
    if any(isinstance(d, int) and d == 0 for d in expr_shape(x)):
        return c.spread(c.scalar(_of_nothing(c.op, dtype), dtype), c.shape)
    if c.op in ("reduce_and", "reduce_or") and dtype != "bool":
        return _bitwise(c, x, axes)
    x = c.cast(x, "int8") if dtype == "bool" else widened(c, x) if c.op in ("reduce_sum", "reduce_prod") else x
    whole = c.emit(_REDUCTIONS[c.op](x, axes, keepdims=True))
    return c.reshape(c.cast(whole, dtype), c.shape)


@converter("reduce_xor")
def reduce_xor(c: Primitive) -> Value:
    axes, dtype = [int(a) for a in c.params["axes"]], c.dtype
    if not axes:
        return c.values[0]
    if dtype != "bool":
        return _bitwise(c, c.x(), axes)
    count = c.emit(relax.op.sum(c.cast(c.x(), "int32"), axes, keepdims=True))
    odd = c.emit(relax.op.bitwise_and(count, c.scalar(1, "int32")))
    return c.reshape(c.cast(odd, "bool"), c.shape)


def _of_nothing(name: str, dtype: str) -> float | int | bool:
    """What a reduction of no element gives."""
    kind = name.removeprefix("reduce_")
    if kind in ("or", "xor"):
        return 0
    if kind == "and":
        return -1 if dtype.startswith("int") else neutral("min", dtype)  # every bit
    return neutral(kind, dtype)


def _bitwise(c: Primitive, x: relax.Expr, axes: list[int]) -> relax.Expr:
    """Bits of integers joined along `axes`."""
    step = {"reduce_and": lambda a, b: a & b, "reduce_or": lambda a, b: a | b, "reduce_xor": lambda a, b: a ^ b}[c.op]
    start = _of_nothing(c.op, c.dtype)
    return _folded(c, x, axes, te.comm_reducer(step, lambda dtype: const(start, dtype), name=c.op))


def _folded(c: Primitive, x: relax.Expr, axes: list[int], reducer: Callable[..., Any]) -> relax.Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        ks = {a: te.reduce_axis((0, x.shape[a]), f"k{a}") for a in axes}

        def element(*index: Scalar) -> Scalar:
            kept = iter(index)
            return reducer(
                x(*(ks[a].var if a in ks else next(kept) for a in range(len(x.shape)))), axis=list(ks.values())
            )

        return te.compute([d for a, d in enumerate(x.shape) if a not in ks], element, name=c.op)

    return c.te(compute, x)


@converter("argmax", "argmin")
def arg_extreme(c: Primitive) -> Value:
    """The first of equal elements, a NaN before all."""
    (axis,) = c.params["axes"]
    index = arg_index(c, c.x(), int(axis), largest=c.op == "argmax")
    return c.cast(c.reshape(index, c.shape), c.dtype)


@converter("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def running(c: Primitive) -> Value:
    """Each element of the elements up to it, in the direction of the scan, halves in float32; a NaN stays."""
    axis, backwards = int(c.params["axis"]), bool(c.params["reverse"])
    x = widened(c, c.x())
    x = c.emit(relax.op.flip(x, axis)) if backwards else x
    if c.op in ("cumsum", "cumprod"):
        x = c.emit(getattr(relax.op, c.op)(x, axis, dtype=expr_dtype(x)))
    elif c.op == "cumlogsumexp":
        x = running_log_sum_exp(c, x, axis)
    else:
        x = running_extreme(c, x, axis, largest=c.op == "cummax")
    x = c.emit(relax.op.flip(x, axis)) if backwards else x
    return c.cast(x, c.dtype)
