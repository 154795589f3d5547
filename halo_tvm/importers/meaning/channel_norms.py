"""Normalisations of [n, c, *space] with a scale and a shift per channel: batch, group and instance.

Half types are carried out in float32.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from .builder import Builder, expr_dtype, expr_shape
from .constant import Constant
from .norms import normalised, scaled, wide_type
from .sizes import Dim

Vector = relax.Expr | None  # [c]; None: ones or zeros


def batch_norm(
    builder: Builder,
    x: relax.Expr,
    weight: Vector,
    bias: Vector,
    mean: relax.Expr,
    variance: relax.Expr,
    epsilon: float,
) -> relax.Expr:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias by statistics [c].

    Where all are known it is one product and one sum, which a convolution before it takes into its weights.
    """
    rank, dtype = len(expr_shape(x)), expr_dtype(x)
    folded = _folded(builder, dtype, weight, bias, mean, variance, epsilon)
    if folded is not None:
        return scaled(builder, x, *(spread(builder, builder.weight(vector), rank) for vector in folded))
    wide = wide_type(dtype)
    deviation = builder.emit(
        relax.op.sqrt(builder.emit(relax.op.add(builder.cast(variance, wide), relax.const(epsilon, wide))))
    )
    over = relax.const(1.0, wide) if weight is None else builder.cast(weight, wide)
    scale = builder.emit(relax.op.divide(over, deviation))
    shifted = relax.op.subtract(builder.cast(x, wide), spread(builder, builder.cast(mean, wide), rank))
    out = scaled(
        builder,
        builder.emit(shifted),
        spread(builder, scale, rank),
        None if bias is None else spread(builder, builder.cast(bias, wide), rank),
    )
    return builder.cast(out, dtype)


def batch_statistics(builder: Builder, x: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """(mean, variance) [c] of this batch, in float32 or float64."""
    rank = len(expr_shape(x))
    axes, x = [0, *range(2, rank)], builder.cast(x, wide_type(expr_dtype(x)))
    mean = builder.emit(relax.op.mean(x, axes))
    centred = builder.emit(relax.op.subtract(x, spread(builder, mean, rank)))
    return mean, builder.emit(relax.op.mean(builder.emit(relax.op.multiply(centred, centred)), axes))


def group_norm(
    builder: Builder, x: relax.Expr, groups: int, weight: Vector, bias: Vector, epsilon: float
) -> relax.Expr:
    """Each group of channels normalised with its space; weight and bias hold an element per channel, or per group."""
    shape, dtype = expr_shape(x), expr_dtype(x)
    channels = shape[1]
    fits = isinstance(channels, int) and groups > 0 and channels % groups == 0
    builder.refuse_unless(fits, f"expected channels in {groups} groups, found {channels}")
    rows = _normalised_rows(builder, x, groups, epsilon)

    def of_group(value: Vector) -> Vector:
        return value if value is None else builder.emit(relax.op.reshape(value, [1, groups, 1]))

    def of_channel(value: Vector) -> Vector:
        return value if value is None else spread(builder, value, len(shape))

    vectors = (weight, bias)
    if any(v is not None and expr_shape(v)[0] == groups != channels for v in vectors):
        rows, vectors = scaled(builder, rows, *map(of_group, vectors)), (None, None)
    normal = builder.emit(relax.op.reshape(rows, shape))
    return builder.cast(scaled(builder, normal, *map(of_channel, vectors)), dtype)


def instance_norm(builder: Builder, x: relax.Expr, weight: Vector, bias: Vector, epsilon: float) -> relax.Expr:
    """Every channel of every image normalised by itself."""
    rank, dtype = len(expr_shape(x)), expr_dtype(x)
    builder.refuse_unless(rank > 2, f"expected an input of rank 3 or more, found {rank}")
    rows = _normalised_rows(builder, x, expr_shape(x)[1], epsilon)
    normal = builder.emit(relax.op.reshape(rows, expr_shape(x)))
    vectors = (None if v is None else spread(builder, v, rank) for v in (weight, bias))
    return builder.cast(scaled(builder, normal, *vectors), dtype)


def _normalised_rows(builder: Builder, x: relax.Expr, groups: Dim, epsilon: float) -> relax.Expr:
    """Each of `groups` parts of an image as one row [n, groups, elements], normalised, in float32 or float64."""
    shape = expr_shape(x)
    width = builder.sizes.product([builder.sizes.floordiv(shape[1], groups), *shape[2:]])
    rows = builder.emit(relax.op.reshape(builder.cast(x, wide_type(expr_dtype(x))), [shape[0], groups, width]))
    return normalised(builder, rows, [2], epsilon)[0]


def spread(builder: Builder, vector: relax.Expr, rank: int) -> relax.Expr:
    """[c] as [1, c, 1, ...]."""
    return builder.emit(relax.op.reshape(vector, [1, *expr_shape(vector), *[1] * (rank - 2)]))


def _folded(
    builder: Builder, dtype: str, weight: Vector, bias: Vector, mean: relax.Expr, variance: relax.Expr, epsilon: float
) -> tuple[Constant, Constant] | None:
    """(scale, shift) so that y = x * scale + shift; None unless x is float32 and all statistics are known."""
    vectors = (weight, bias, mean, variance)
    # Found now: a weight that is read by nothing else is no longer one when the values are asked for.
    known = [None if v is None else builder.known(v) for v in vectors]
    if dtype != "float32" or any(v is not None and (k is None or k.dtype != dtype) for v, k in zip(vectors, known)):
        return None

    def read(place: int, fill: float) -> np.ndarray | float:
        value = known[place]
        return fill if value is None else value.load().astype(np.float64)

    def scale() -> np.ndarray:
        return read(0, 1.0) / np.sqrt(read(3, 1.0) + epsilon)

    def shift() -> np.ndarray:
        return read(1, 0.0) - read(2, 0.0) * scale()

    shape = tuple(expr_shape(variance))
    return tuple(
        Constant(shape, "float32", lambda make=make: make().astype(np.float32), f"{builder.name}.{make.__name__}")
        for make in (scale, shift)
    )
