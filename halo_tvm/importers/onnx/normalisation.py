"""Normalisations: batch, instance, group, layer, RMS and local response."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from ...relay_ops.layer_norm import LayerNorm
from ...relay_ops.rms_norm import RMSNorm
from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.constant import Constant
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter


@converter("BatchNormalization")
def batch_normalization(node: Node) -> object:
    """By running statistics, or (training) by those of this batch, which then move the running ones."""
    rank = node.rank(0)
    node.refuse_unless(rank >= 2, f"expected an input of rank 2 or more, found {rank}")
    training = (
        bool(node.attr("training_mode", 0)) if node.opset >= 14 else node.opset < 7 and not node.attr("is_test", 0)
    )
    node.refuse_unless(bool(node.attr("spatial", 1)), "expected statistics per channel, found spatial=0")
    x, dtype = node.x(0), node.dtype(0)
    epsilon = float(node.attr("epsilon", 1e-5))
    if not training:
        folded = _folded(node, epsilon)
        if folded is not None:
            scale, shift = (_channels(node, node.graph.expr_of(v), rank) for v in folded)
            return node.emit(relax.op.add(node.emit(relax.op.multiply(x, scale)), shift))
        return _standardised(node, x, node.x(3), node.x(4), epsilon, rank)
    axes = [0, *range(2, rank)]
    mean = node.emit(relax.op.mean(x, axes))
    centred = node.emit(relax.op.subtract(x, _channels(node, mean, rank)))
    variance = node.emit(relax.op.mean(node.emit(relax.op.multiply(centred, centred)), axes))
    out = _standardised(node, x, mean, variance, epsilon, rank)
    momentum = float(node.attr("momentum", 0.9))
    moved = []
    for index, current in ((3, mean), (4, variance)):
        kind = node.dtype(index)
        old = node.emit(relax.op.multiply(node.x(index), relax.const(momentum, kind)))
        new = node.emit(relax.op.multiply(_cast(node, current, kind), relax.const(1.0 - momentum, kind)))
        moved.append(node.emit(relax.op.add(old, new)))
    return (out, *moved)[: max(1, len(node.outputs))] if expr_dtype(out) == dtype else node.refuse("mixed dtypes")


def _folded(node: Node, epsilon: float) -> tuple[Constant, Constant] | None:
    """(scale, shift) so that y = x * scale + shift; None unless all statistics are known."""
    values = [node.value(i) for i in range(1, 5)]
    if node.dtype(0) != "float32" or any(not isinstance(v, Constant) or v.dtype != "float32" for v in values):
        return None

    def scale() -> np.ndarray:
        return values[0].array.astype(np.float64) / np.sqrt(values[3].array.astype(np.float64) + epsilon)

    def shift() -> np.ndarray:
        return values[1].array.astype(np.float64) - values[2].array.astype(np.float64) * scale()

    return tuple(
        Constant(
            values[0].shape, "float32", lambda make=make: make().astype(np.float32), f"{node.name}.{make.__name__}"
        )
        for make in (scale, shift)
    )


def _standardised(
    node: Node, x: relax.Expr, mean: relax.Expr, variance: relax.Expr, epsilon: float, rank: int
) -> relax.Expr:
    """(x - mean) / sqrt(variance + epsilon) * input 1 + input 2, all vectors over the channels."""
    dtype = expr_dtype(x)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    shifted = node.emit(relax.op.add(_cast(node, variance, wide), relax.const(epsilon, wide)))
    scale = node.emit(relax.op.divide(_cast(node, node.x(1), wide), node.emit(relax.op.sqrt(shifted))))
    centred = node.emit(relax.op.subtract(_cast(node, x, wide), _channels(node, _cast(node, mean, wide), rank)))
    out = node.emit(relax.op.multiply(centred, _channels(node, scale, rank)))
    out = node.emit(relax.op.add(out, _channels(node, _cast(node, node.x(2), wide), rank)))
    return _cast(node, out, dtype)


@converter("InstanceNormalization")
def instance_normalization(node: Node) -> relax.Expr:
    rank = node.rank(0)
    node.refuse_unless(rank > 2, f"expected an input of rank 3 or more, found {rank}")
    normal = _normalised(node, node.x(0), list(range(2, rank)), float(node.attr("epsilon", 1e-5)))[0]
    scaled = node.emit(relax.op.multiply(normal, _channels(node, node.x(1), rank)))
    return relax.op.add(scaled, _channels(node, node.x(2), rank))


@converter("GroupNormalization", since=18)
def group_normalization_18(node: Node) -> relax.Expr:
    """Scale and bias of one element per group."""
    return _grouped(node, per_group=True)


@converter("GroupNormalization", since=21)
def group_normalization(node: Node) -> relax.Expr:
    """Scale and bias of one element per channel."""
    return _grouped(node, per_group=False)


def _grouped(node: Node, per_group: bool) -> relax.Expr:
    shape, groups = list(node.shape(0)), int(node.attr("num_groups"))
    node.refuse_unless(
        isinstance(shape[1], int) and shape[1] % groups == 0, f"expected channels in {groups} groups, found {shape[1]}"
    )
    split = [shape[0], groups, shape[1] // groups, *shape[2:]]
    x = node.emit(relax.op.reshape(node.x(0), split))
    dtype = node.dtype(0)
    wide = "float64" if dtype == "float64" else "float32"
    normal = _normalised(node, _cast(node, x, wide), list(range(2, len(split))), float(node.attr("epsilon", 1e-5)))[0]
    sizes = [1, groups, 1] if per_group else [1, groups, shape[1] // groups]
    vectors = [
        node.emit(relax.op.reshape(_cast(node, node.x(i), wide), [*sizes, *[1] * (len(shape) - 2)])) for i in (1, 2)
    ]
    out = node.emit(relax.op.add(node.emit(relax.op.multiply(normal, vectors[0])), vectors[1]))
    return relax.op.reshape(_cast(node, out, dtype), shape)


@converter("LayerNormalization")
def layer_normalization(node: Node) -> object:
    """halo.layer_norm over the last axis; what it does not give (statistics, several axes) is spelt out."""
    rank = node.rank(0)
    axis = int(node.attr("axis", -1)) % rank
    epsilon, dtype = float(node.attr("epsilon", 1e-5)), node.dtype(0)
    # Only when an output is asked for by name are the statistics computed.
    wanted = any(node.outputs[1:])
    if _is_vector(node, 1, axis) and (not node.has(2) or _is_vector(node, 2, axis)) and not wanted:
        bias = node.x(2) if node.has(2) else relax.const(np.zeros(node.shape(1), np.float32))
        return LayerNorm.call(node.x(0), node.x(1), bias, eps=epsilon)
    wide = "float64" if dtype == "float64" else "float32"
    x = _cast(node, node.x(0), wide)
    normal, mean, inverse = _normalised(node, x, list(range(axis, rank)), epsilon)
    out = node.emit(relax.op.multiply(normal, _cast(node, node.x(1), wide)))
    if node.has(2):
        out = node.emit(relax.op.add(out, _cast(node, node.x(2), wide)))
    return (_cast(node, out, dtype), mean, inverse)[: max(1, len(node.outputs))]


@converter("RMSNormalization", since=23)
def rms_normalization(node: Node) -> relax.Expr:
    rank = node.rank(0)
    axis = int(node.attr("axis", -1)) % rank
    epsilon, dtype = float(node.attr("epsilon", 1e-5)), node.dtype(0)
    if _is_vector(node, 1, axis):
        return RMSNorm.call(node.x(0), node.x(1), eps=epsilon)
    wide = "float64" if dtype == "float64" else "float32"
    x = _cast(node, node.x(0), wide)
    square = node.emit(relax.op.mean(node.emit(relax.op.multiply(x, x)), list(range(axis, rank)), keepdims=True))
    root = node.emit(relax.op.sqrt(node.emit(relax.op.add(square, relax.const(epsilon, wide)))))
    normal = _cast(node, node.emit(relax.op.divide(x, root)), node.dtype(1))
    return relax.op.multiply(normal, node.x(1))


def _is_vector(node: Node, index: int, axis: int) -> bool:
    """Whether input `index` is a float32 vector of the last axis of a float32 input 0, and that axis alone counts."""
    shape = node.shape(0)
    alone = axis == len(shape) - 1 and node.dtype(0) == node.dtype(index) == "float32"
    return alone and node.rank(index) == 1 and node.sizes.is_equal(node.shape(index)[0], shape[-1])


@converter("LRN")
def lrn(node: Node) -> relax.Expr:
    """Divided by a power of the squares in a window of neighbouring channels."""
    size, alpha = int(node.attr("size")), float(node.attr("alpha", 1e-4))
    beta, bias = float(node.attr("beta", 0.75)), float(node.attr("bias", 1.0))
    before = (size - 1) // 2
    node.refuse_unless(node.rank(0) >= 2 and size > 0, "expected an input with channels and a size above 0")

    def compute(x: te.Tensor) -> te.Tensor:
        k, dtype = te.reduce_axis((0, size), "k"), x.dtype

        def squares(n, c, *place):
            at = c + k - before
            inside = tirx.all(at >= 0, at < x.shape[1])
            value = tirx.if_then_else(inside, x[(n, at, *place)], tirx.const(0, dtype))
            return te.sum(value * value, axis=k)

        total = te.compute(x.shape, squares, name="squares")

        def divided(*i):
            base = tirx.const(bias, dtype) + tirx.const(alpha / size, dtype) * total[i]
            if beta == 0.75:  # two square roots are faster than a power
                root = te.sqrt(base)
                return x[i] / (root * te.sqrt(root))
            return x[i] / te.power(base, tirx.const(beta, dtype))

        return te.compute(x.shape, divided, name="lrn")

    return node.te(compute, node.x(0))


def _normalised(
    node: Node, x: relax.Expr, axes: list[int], epsilon: float
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """((x - mean) / deviation, mean, 1 / deviation) over `axes`, which are kept."""
    mean = node.emit(relax.op.mean(x, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(x, mean))
    variance = node.emit(relax.op.mean(node.emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    dtype = expr_dtype(x)
    deviation = node.emit(relax.op.sqrt(node.emit(relax.op.add(variance, relax.const(epsilon, dtype)))))
    inverse = node.emit(relax.op.divide(relax.const(1.0, dtype), deviation))
    return node.emit(relax.op.multiply(centred, inverse)), mean, inverse


def _channels(node: Node, vector: relax.Expr, rank: int) -> relax.Expr:
    """[c] as [1, c, 1, ...]."""
    sizes: Sequence[Dim] = expr_shape(vector)
    return vector if rank == 1 else node.emit(relax.op.reshape(vector, [1, *sizes, *[1] * (rank - 2)]))


def _cast(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    return x if expr_dtype(x) == dtype else node.emit(relax.op.astype(x, dtype))
