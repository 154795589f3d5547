"""What the normalisations share: their vectors, their residual, and the parts of their decomposed spellings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tvm import ir, relax, te, tirx
from tvm.relax.dpl import DFPattern, is_op

from ...errors import Rejected
from ..operator import f32, required_number, same_dimension, same_shape


def check_vectors(name: str, x: relax.Expr, vectors: Mapping[str, relax.Expr]) -> None:
    """Raise ValueError unless each of `vectors` is float32 [d], d being the last dimension of x."""
    for label, value in vectors.items():
        reason = why_no_vector(x, label, value)
        if reason:
            raise ValueError(f"halo.{name}: {reason}")


def why_no_vector(x: relax.Expr, label: str, value: relax.Expr) -> str | None:
    """The sentence that says why `value` cannot be the `label` of a norm of x, or None."""
    ty, width = value.ty, x.ty.shape.values[-1]
    if ty.ndim != 1:
        return f"{label} must be a vector of the last dimension, got rank {ty.ndim}"
    if ty.dtype != "float32":
        return f"{label} must be float32, got {ty.dtype}"
    if not same_dimension(ty.shape.values[0], width):
        return f"{label} must be a vector of the last dimension {_shown(width)}, got {_shown(ty.shape.values[0])}"
    return None


def check_residual(name: str, x: relax.Expr, residual: Sequence[relax.Expr]) -> None:
    """Raise ValueError unless each residual has the shape and dtype of x."""
    for value in residual:
        if value.ty.dtype != x.ty.dtype or not same_shape(value.ty.shape.values, x.ty.shape.values):
            raise ValueError(f"halo.{name}: the residual must be like x {x.ty}, got {value.ty}: reshape or cast it")


def with_residual(x: te.Tensor, residual: tuple[te.Tensor, ...]) -> te.Tensor:
    """x + residual in float32, or x itself."""
    if not residual:
        return x
    return te.compute(x.shape, lambda *i: f32(x[i]) + f32(residual[0][i]), name="residual")


def scale_of(squares: te.Tensor, count: ir.Expr, eps: float) -> te.Tensor:
    """1 / sqrt(squares / count + eps), of every row."""
    one, shift = (tirx.const(float(number), "float32") for number in (1, eps))
    return te.compute(squares.shape, lambda *i: one / te.sqrt(squares[i] / count + shift), name="scale")


def require(reason: str | None) -> None:
    """`Rejected(reason)` when there is one."""
    if reason:
        raise Rejected(reason)


def mean_of(pattern: DFPattern) -> DFPattern:
    """relax.mean of a pattern; `require_last_axis` checks its attributes."""
    return is_op("relax.mean")(pattern)


def require_last_axis(call: relax.Expr, rank: int) -> None:
    """`Rejected` unless the mean `call` reduces the last axis and keeps it."""
    require_last("mean", call.attrs.axis if call.attrs.axis is not None else range(rank), rank)
    if not call.attrs.keepdims:
        raise Rejected("mean must keep the reduced axis, got keepdims=False")


def require_last(what: str, axes: Iterable[int], rank: int) -> None:
    """`Rejected` unless `what` is over the last axis alone."""
    axes = [int(a) % rank for a in axes]
    if axes != [rank - 1]:
        raise Rejected(f"{what} must be over the last axis, got axes {axes} of rank {rank}")


def by_root(x: DFPattern, mean: DFPattern, eps: DFPattern) -> dict[str, DFPattern]:
    """x / sqrt(mean + eps) and x * rsqrt(mean + eps), by the names of their lifts."""
    shifted = is_op("relax.add")(mean, eps)
    divided = is_op("relax.divide")(x, is_op("relax.sqrt")(shifted))
    return {"sqrt_div": divided, "rsqrt_mul": is_op("relax.multiply")(x, is_op("relax.rsqrt")(shifted))}


def square_of(c: DFPattern, exponent: DFPattern) -> DFPattern:
    """c * c or power(c, exponent)."""
    return is_op("relax.multiply")(c, c) | is_op("relax.power")(c, exponent)


def require_square(matched: Mapping[DFPattern, relax.Expr], exponent: DFPattern) -> None:
    """`Rejected` when the square is a power of another exponent than 2."""
    number = required_number(matched[exponent], "the exponent") if exponent in matched else 2.0
    if number != 2.0:
        raise Rejected(f"the exponent must be 2, got {number}")


def _shown(dimension: ir.Expr) -> str:
    return str(int(dimension.value)) if isinstance(dimension, tirx.IntImm) else str(dimension)
