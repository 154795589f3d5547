"""Normalisations over the last axes: layer and RMS. Half types are carried out in float32."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...relay_ops.layer_norm import LayerNorm
from ...relay_ops.parts.norm import why_no_vector
from ...relay_ops.rms_norm import RMSNorm
from .builder import Builder, expr_dtype, expr_shape


def layer_norm(
    builder: Builder, x: relax.Expr, axis: int, weight: relax.Expr | None, bias: relax.Expr | None, epsilon: float
) -> relax.Expr:
    """(x - mean) / deviation over the axes from `axis` on, times weight, plus bias; halo.layer_norm of a last axis."""
    vectors = _vectors(builder, x, axis, (weight, 1.0), (bias, 0.0))
    if vectors is not None:
        return builder.emit(LayerNorm.call(x, *vectors, eps=epsilon))
    wide = wide_type(expr_dtype(x))
    normal, _, _ = normalised(builder, builder.cast(x, wide), list(range(axis, len(expr_shape(x)))), epsilon)
    return builder.cast(scaled(builder, normal, weight, bias), expr_dtype(x))


def rms_norm(builder: Builder, x: relax.Expr, axis: int, weight: relax.Expr | None, epsilon: float) -> relax.Expr:
    """x / sqrt(mean(x^2) + epsilon) over the axes from `axis` on, times weight; halo.rms_norm of a last axis."""
    vectors = _vectors(builder, x, axis, (weight, 1.0))
    if vectors is not None:
        return builder.emit(RMSNorm.call(x, *vectors, eps=epsilon))
    wide, axes = wide_type(expr_dtype(x)), list(range(axis, len(expr_shape(x))))
    value = builder.cast(x, wide)
    square = builder.emit(relax.op.mean(builder.emit(relax.op.multiply(value, value)), axes, keepdims=True))
    root = builder.emit(relax.op.sqrt(builder.emit(relax.op.add(square, relax.const(epsilon, wide)))))
    normal = builder.emit(relax.op.divide(value, root))
    return builder.cast(scaled(builder, normal, weight, None), expr_dtype(x))


def normalised(
    builder: Builder, x: relax.Expr, axes: list[int], epsilon: float
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """((x - mean) / deviation, mean, 1 / deviation) over `axes`, which are kept."""
    mean = builder.emit(relax.op.mean(x, axes, keepdims=True))
    centred = builder.emit(relax.op.subtract(x, mean))
    variance = builder.emit(relax.op.mean(builder.emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    dtype = expr_dtype(x)
    deviation = builder.emit(relax.op.sqrt(builder.emit(relax.op.add(variance, relax.const(epsilon, dtype)))))
    inverse = builder.emit(relax.op.divide(relax.const(1.0, dtype), deviation))
    return builder.emit(relax.op.multiply(centred, inverse)), mean, inverse


def scaled(builder: Builder, x: relax.Expr, weight: relax.Expr | None, bias: relax.Expr | None) -> relax.Expr:
    """x * weight + bias in the type of x, as far as they are given."""
    dtype = expr_dtype(x)
    if weight is not None:
        x = builder.emit(relax.op.multiply(x, builder.cast(weight, dtype)))
    return x if bias is None else builder.emit(relax.op.add(x, builder.cast(bias, dtype)))


def wide_type(dtype: str) -> str:
    """The type in which means and deviations of elements of `dtype` are computed."""
    return "float64" if dtype == "float64" else "float32"


def _vectors(
    builder: Builder, x: relax.Expr, axis: int, *given: tuple[relax.Expr | None, float]
) -> list[relax.Expr] | None:
    """Vectors of the last axis in float32, filled with a number where none is given; None where they are none."""
    width = expr_shape(x)[-1]
    if axis != len(expr_shape(x)) - 1 or expr_dtype(x) == "float64":
        return None
    out = []
    for vector, fill in given:
        if vector is None:
            if not isinstance(width, int):
                return None
            vector = relax.const(np.full(width, fill, np.float32))
        vector = builder.cast(vector, "float32")
        if why_no_vector(x, "a vector", vector):
            return None
        out.append(vector)
    return out
