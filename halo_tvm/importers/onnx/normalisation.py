"""Normalisations: batch, instance, group, layer, RMS and local response."""

from __future__ import annotations

from tvm import relax, te, tirx

from ..meaning.channel_norms import batch_norm, batch_statistics, group_norm, instance_norm
from ..meaning.norms import layer_norm, normalised, rms_norm, scaled, wide_type
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
    x, weight, bias = (node.x(i) for i in range(3))
    epsilon = float(node.attr("epsilon", 1e-5))
    if not training:
        return batch_norm(node, x, weight, bias, node.x(3), node.x(4), epsilon)
    mean, variance = batch_statistics(node, x)
    out = batch_norm(node, x, weight, bias, mean, variance, epsilon)
    momentum = float(node.attr("momentum", 0.9))
    moved = []
    for index, current in ((3, mean), (4, variance)):
        kind = node.dtype(index)
        old = node.emit(relax.op.multiply(node.x(index), relax.const(momentum, kind)))
        new = node.emit(relax.op.multiply(node.cast(current, kind), relax.const(1.0 - momentum, kind)))
        moved.append(node.emit(relax.op.add(old, new)))
    return (out, *moved)[: max(1, len(node.outputs))]


@converter("InstanceNormalization")
def instance_normalization(node: Node) -> relax.Expr:
    return instance_norm(node, node.x(0), node.x(1), node.x(2), float(node.attr("epsilon", 1e-5)))


@converter("GroupNormalization", since=18)
def group_normalization(node: Node) -> relax.Expr:
    """Scale and bias of one element per group, since version 21 of one per channel."""
    groups = int(node.attr("num_groups"))
    return group_norm(node, node.x(0), groups, node.x(1), node.x(2), float(node.attr("epsilon", 1e-5)))


@converter("LayerNormalization")
def layer_normalization(node: Node) -> object:
    """Its statistics are computed only when an output is asked for by name."""
    rank = node.rank(0)
    axis = node.axis(node.attr("axis", -1), rank)
    epsilon, bias = float(node.attr("epsilon", 1e-5)), node.x(2) if node.has(2) else None
    if not any(node.outputs[1:]):
        return layer_norm(node, node.x(0), axis, node.x(1), bias, epsilon)
    x = node.cast(node.x(0), wide_type(node.dtype(0)))
    normal, mean, inverse = normalised(node, x, list(range(axis, rank)), epsilon)
    out = node.cast(scaled(node, normal, node.x(1), bias), node.dtype(0))
    return (out, mean, inverse)[: len(node.outputs)]


@converter("RMSNormalization", since=23)
def rms_normalization(node: Node) -> relax.Expr:
    axis = node.axis(node.attr("axis", -1), node.rank(0))
    out = rms_norm(node, node.x(0), axis, node.x(1), float(node.attr("epsilon", 1e-5)))
    return node.cast(out, node.dtype(1))


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
