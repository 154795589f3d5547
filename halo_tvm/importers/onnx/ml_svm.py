"""ai.onnx.ml: support vector machines: a kernel against all support vectors, then matrix products."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..meaning.builder import expr_shape
from ._ml import ML, class_labels, columns, floats, labelled, rows, table, transformed, weight
from ._node import Node
from ._registry import converter

_MOST_CLASSES = 1024
_ROUNDS = 100  # of the search for probabilities, which ends early below the error _ERROR / classes
_ERROR = 0.005
_SURE = 1e-7


@converter("SVMRegressor", domain=ML)
def svm_regressor(node: Node) -> relax.Expr:
    """float32 [rows, 1]; of a one-class machine the sign."""
    node.refuse_unless(node.attr("post_transform", "NONE") == "NONE", "a post_transform of a regression is not defined")
    x = node.cast(rows(node), "float32")
    count = int(node.attr("n_supports", 0))
    x = _kernels(node, x, count) if count > 0 else x
    out = node.emit(relax.op.matmul(x, weight(node, table(node, "coefficients", expr_shape(x)[1], 1))))
    out = node.emit(relax.op.add(out, relax.const(floats(node, "rho")[:1], "float32")))
    if not node.attr("one_class", 0):
        return out
    above = node.emit(relax.op.greater(out, relax.const(0.0, "float32")))
    return relax.op.where(above, relax.const(1.0, "float32"), relax.const(-1.0, "float32"))


@converter("SVMClassifier", domain=ML)
def svm_classifier(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """(labels [rows], scores): probabilities per class where prob_a is given, else a score per pair of classes."""
    labels = class_labels(node, "classlabels_ints", "classlabels_strings")
    classes, kind = labels.size, node.attr("post_transform", "NONE")
    node.refuse_unless(2 <= classes <= _MOST_CLASSES, f"expected 2 to {_MOST_CLASSES} classes, found {classes}")
    per_class = [int(v) for v in node.attr("vectors_per_class", [])]
    x = node.cast(rows(node), "float32")
    if sum(per_class) == 0:
        return _linear(node, x, labels, kind)
    node.refuse_unless(len(per_class) == classes, f"expected vectors of {classes} classes, found {len(per_class)}")
    scores = _pair_scores(node, _kernels(node, x, sum(per_class)), per_class)
    index = _votes(node, scores, classes)
    if node.attr("prob_a", []):
        return labelled(node, index, labels), transformed(node, _probabilities(node, scores, classes), kind)
    if classes > 2:
        return labelled(node, index, labels), transformed(node, scores, kind)
    if kind == "NONE":
        other = relax.op.negative(scores)
    else:
        node.refuse("a post_transform of a machine for two classes without probabilities has no agreed meaning")
    return labelled(node, index, labels), columns(node, node.emit(other), scores)


def _linear(node: Node, x: relax.Expr, labels: np.ndarray, kind: str) -> tuple[relax.Expr, relax.Expr]:
    """Without support vectors: a score per class."""
    classes, features = labels.size, expr_shape(x)[1]
    node.refuse_unless(classes > 2, "a machine for two classes without support vectors has no agreed meaning")
    matrix = np.ascontiguousarray(table(node, "coefficients", classes, features).T)
    scores = node.emit(relax.op.matmul(x, weight(node, matrix)))
    scores = node.emit(relax.op.add(scores, relax.const(floats(node, "rho")[:1], "float32")))
    return labelled(node, node.emit(relax.op.argmax(scores, -1)), labels), transformed(node, scores, kind)


def _kernels(node: Node, x: relax.Expr, count: int) -> relax.Expr:
    """float32 [rows, support vectors]."""
    features = expr_shape(x)[1]
    vectors = table(node, "support_vectors", count, features)
    kind = node.attr("kernel_type", "LINEAR")
    gamma, offset, degree = (floats(node, "kernel_params", []).tolist() + [0.0] * 3)[:3]
    if kind == "RBF":

        def distance(x: te.Tensor, vectors: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, features), name="k")

            def element(i: object, j: object) -> object:
                difference = x[i, k] - vectors[j, k]
                return te.sum(difference * difference, axis=k)

            return te.compute((x.shape[0], count), element, name="distance")

        squares = node.te(distance, x, weight(node, vectors), name="onnx_svm_distance")
        return node.emit(relax.op.exp(node.emit(relax.op.multiply(squares, relax.const(-gamma, "float32")))))
    node.refuse_unless(
        kind in ("LINEAR", "POLY", "SIGMOID"), f"expected LINEAR, POLY, RBF or SIGMOID as kernel, found {kind}"
    )
    products = node.emit(relax.op.matmul(x, weight(node, np.ascontiguousarray(vectors.T))))
    if kind == "LINEAR":
        return products
    scaled = node.emit(relax.op.multiply(products, relax.const(gamma, "float32")))
    scaled = node.emit(relax.op.add(scaled, relax.const(offset, "float32")))
    if kind == "SIGMOID":
        return node.emit(relax.op.tanh(scaled))
    if degree != int(degree) or not 1 <= degree <= 16:
        return node.emit(relax.op.power(scaled, relax.const(degree, "float32")))
    out = scaled
    for _ in range(int(degree) - 1):
        out = node.emit(relax.op.multiply(out, scaled))
    return out


def _pair_scores(node: Node, kernels: relax.Expr, per_class: list[int]) -> relax.Expr:
    """[rows, pairs]: above 0 the first of two classes is chosen. One product with a matrix [vectors, pairs]."""
    classes, total = len(per_class), sum(per_class)
    pairs = list(combinations(range(classes), 2))
    coefficients, rho = table(node, "coefficients", classes - 1, total), table(node, "rho", len(pairs))
    ends = np.cumsum([0, *per_class])
    matrix = np.zeros((total, len(pairs)), np.float32)
    for p, (i, j) in enumerate(pairs):
        first, second = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
        matrix[first, p] = coefficients[j - 1, first]
        matrix[second, p] = coefficients[i, second]
    out = node.emit(relax.op.matmul(kernels, weight(node, matrix)))
    return node.emit(relax.op.add(out, relax.const(rho, "float32")))


def _votes(node: Node, scores: relax.Expr, classes: int) -> relax.Expr:
    """The class that most pairs choose, the first of several: [rows]."""
    pairs = list(combinations(range(classes), 2))
    gained = np.zeros((len(pairs), classes), np.float32)  # by the first class instead of the second
    for p, (i, j) in enumerate(pairs):
        gained[p, i], gained[p, j] = 1, -1
    chosen = node.cast(node.emit(relax.op.greater(scores, relax.const(0.0, "float32"))), "float32")
    without = np.array([[sum(j == c for _, j in pairs) for c in range(classes)]], np.float32)
    counts = node.emit(
        relax.op.add(node.emit(relax.op.matmul(chosen, weight(node, gained))), relax.const(without, "float32"))
    )
    return node.emit(relax.op.argmax(counts, -1))


def _probabilities(node: Node, scores: relax.Expr, classes: int) -> relax.Expr:
    """[rows, classes] from the scores of pairs: the coupling of Wu, Lin and Weng, as many rounds as its engines do."""
    a, b = (table(node, name, classes * (classes - 1) // 2) for name in ("prob_a", "prob_b"))

    def couple(scores: te.Tensor, a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return te.extern(
            [(scores.shape[0], classes)],
            [scores, a, b],
            lambda ins, outs: _couple(ins, outs[0], classes),
            dtype="float32",
            name="couple",
        )

    return node.te(couple, scores, weight(node, a), weight(node, b), name="onnx_svm_probabilities")


def _couple(ins: list, out: object, classes: int) -> tirx.Stmt:
    scores, a, b = (T.buffer_proxy(buffer) for buffer in ins)
    p = T.buffer_proxy(out)

    def number(value: float) -> tirx.PrimExpr:
        return tirx.const(value, "float32")

    with IRBuilder() as builder, T.parallel(0, out.shape[0]) as row:
        wins = T.buffer_proxy(T.alloc_buffer((classes, classes), "float32"))  # how likely i is against j
        q = T.buffer_proxy(T.alloc_buffer((classes, classes), "float32"))
        qp = T.buffer_proxy(T.alloc_buffer((classes,), "float32"))
        total, going, step = (T.buffer_proxy(T.alloc_buffer((1,), "float32", scope="local")) for _ in range(3))
        for index, (i, j) in enumerate(combinations(range(classes), 2)):
            value = number(1) / (number(1) + tirx.exp(scores[row, index] * a[index] + b[index]))
            wins[i, j] = tirx.min(tirx.max(value, number(_SURE)), number(1 - _SURE))
            wins[j, i] = number(1) - wins[i, j]
        with T.serial(0, classes) as i:
            p[row, i] = number(1 / classes)
            q[i, i] = number(0)
            with T.serial(0, classes) as j, T.If(i != j), T.Then():
                q[i, i] = q[i, i] + wins[j, i] * wins[j, i]
                q[i, j] = number(0) - wins[j, i] * wins[i, j]
        going[0] = number(1)
        with T.serial(0, _ROUNDS), T.If(going[0] > number(0)), T.Then():
            total[0] = number(0)
            with T.serial(0, classes) as i:
                qp[i] = number(0)
                with T.serial(0, classes) as j:
                    qp[i] = qp[i] + q[i, j] * p[row, j]
                total[0] = total[0] + p[row, i] * qp[i]
            going[0] = number(0)
            with T.serial(0, classes) as i, T.If(tirx.abs(qp[i] - total[0]) >= number(_ERROR / classes)), T.Then():
                going[0] = number(1)
            with T.If(going[0] > number(0)), T.Then(), T.serial(0, classes) as i:
                step[0] = (total[0] - qp[i]) / q[i, i]
                p[row, i] = p[row, i] + step[0]
                grown = number(1) + step[0]
                total[0] = (total[0] + step[0] * (step[0] * q[i, i] + number(2) * qp[i])) / grown / grown
                with T.serial(0, classes) as j:
                    qp[j] = (qp[j] + step[0] * q[i, j]) / grown
                    p[row, j] = p[row, j] / grown
    return builder.get()
