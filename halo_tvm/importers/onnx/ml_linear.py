"""ai.onnx.ml: linear models."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..meaning.builder import expr_shape
from ._ml import ML, class_labels, column, columns, floats, labelled, rows, table, transformed, weight
from ._node import Node
from ._registry import converter


def _products(node: Node, targets: int) -> relax.Expr:
    """float32 [rows, targets]: x times the coefficients, plus the intercepts."""
    x = node.cast(rows(node), "float32")
    matrix = np.ascontiguousarray(table(node, "coefficients", targets, expr_shape(x)[1]).T)
    out = node.emit(relax.op.matmul(x, weight(node, matrix)))
    if not floats(node, "intercepts", []).size:
        return out
    return node.emit(relax.op.add(out, relax.const(table(node, "intercepts", targets))))


@converter("LinearRegressor", domain=ML)
def linear_regressor(node: Node) -> relax.Expr:
    return transformed(node, _products(node, int(node.attr("targets", 1))), node.attr("post_transform", "NONE"))


@converter("LinearClassifier", domain=ML)
def linear_classifier(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """(labels [rows], scores [rows, classes]). One score decides between two classes by its sign."""
    labels = class_labels(node, "classlabels_ints", "classlabels_strings")
    kind = node.attr("post_transform", "NONE")
    targets = floats(node, "intercepts", []).size or floats(node, "coefficients").size // max(_features(node), 1)
    scores = _products(node, targets)
    if targets > 1:
        node.refuse_unless(labels.size == targets, f"expected {targets} labels, found {labels.size}")
        index = node.emit(relax.op.argmax(scores, -1))
        return labelled(node, index, labels), transformed(node, scores, kind)
    positive = node.emit(relax.op.greater(scores, relax.const(0.0, "float32")))
    flat = node.emit(relax.op.reshape(node.cast(positive, "int64"), (expr_shape(scores)[0],)))
    if labels.size != 2:
        return flat, transformed(node, scores, kind)
    return labelled(node, flat, labels), second_class(node, scores, kind)


def second_class(node: Node, score: relax.Expr, kind: str) -> relax.Expr:
    """[rows, 2] from the score [rows, 1] of the second of two classes."""
    if kind == "PROBIT":
        node.refuse("post_transform PROBIT of one score for two classes has no meaning that engines agree on")
    if kind == "LOGISTIC":
        negative = node.emit(relax.op.negative(score))
        return transformed(node, columns(node, negative, score), kind)
    return columns(node, node.emit(relax.op.subtract(relax.const(1.0, "float32"), score)), column(node, score, 0))


def _features(node: Node) -> int:
    size = node.shape(0)[-1]
    node.refuse_unless(isinstance(size, int), f"expected a fixed number of features, found {size}")
    return size
