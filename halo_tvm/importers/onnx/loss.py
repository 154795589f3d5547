"""Losses over class labels: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from tvm import relax, te, tirx

from ...relay_ops.operator import clamped
from ..meaning.builder import expr_dtype
from ..meaning.pointwise import Scalar, const, widened
from ..meaning.sizes import prim
from ._node import Node
from ._registry import converter
from .reduction import log_softmax_of


@converter("NegativeLogLikelihoodLoss")
def negative_log_likelihood(node: Node) -> relax.Expr:
    return node.cast(_loss(node, widened(node, node.x(0))), node.dtype(0))


@converter("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(node: Node) -> tuple[relax.Expr, relax.Expr]:
    log_prob = log_softmax_of(node, widened(node, node.x(0)), 1)
    loss = node.cast(_loss(node, log_prob), node.dtype(0))
    return loss, node.cast(log_prob, node.dtype(0))


def _loss(node: Node, log_prob: relax.Expr) -> relax.Expr:
    """The loss of `log_prob` [n, c, ...] at the labels [n, ...] of input 1, weighted and reduced as the node says."""
    node.refuse_unless(node.rank(0) >= 2, f"expected at least two dimensions, found {node.rank(0)}")
    reduction = node.attr("reduction", "mean")
    node.refuse_unless(reduction in ("none", "sum", "mean"), f"expected none, sum or mean, found {reduction}")
    ignored = node.attr("ignore_index") if node.has_attr("ignore_index") else None
    labels = node.x(1)
    given = [widened(node, node.x(2))] if node.has(2) else []

    def weighed(labels: te.Tensor, classes: Scalar, *weights: te.Tensor) -> te.Tensor:
        """Weight of every sample: that of its class, 0 for the label that is ignored."""
        dtype = expr_dtype(log_prob)

        def element(*i: Scalar) -> Scalar:
            label = labels(*i)
            weight = weights[0](clamped(label, classes)) if weights else const(1, dtype)
            return (
                weight
                if ignored is None
                else tirx.Select(label == const(ignored, labels.dtype), const(0, dtype), weight)
            )

        return te.compute(labels.shape, element, name="weights")

    def picked(x: te.Tensor, labels: te.Tensor, weights: te.Tensor) -> te.Tensor:
        def element(*i: Scalar) -> Scalar:
            value = -x(i[0], clamped(labels(*i), x.shape[1]), *i[1:]) * weights(*i)
            # What is ignored may be infinite: its product with 0 would not be 0.
            zero = const(0, x.dtype)
            return value if ignored is None else tirx.Select(labels(*i) == const(ignored, labels.dtype), zero, value)

        return te.compute(labels.shape, element, name="losses")

    weights = node.te(weighed, labels, prim(node.shape(0)[1]), *given, name="onnx_label_weights")
    losses = node.te(picked, log_prob, labels, weights, name="onnx_label_losses")
    if reduction == "none":
        return losses
    total = node.emit(relax.op.sum(losses))
    if reduction == "sum":
        return total
    return node.emit(relax.op.divide(total, node.emit(relax.op.sum(weights))))
