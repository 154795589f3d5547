"""What the operators of ai.onnx.ml share: rows of features, scores in their final form, and labels."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax, tirx

from ..meaning.builder import expr_shape
from ..meaning.pointwise import Scalar, const, pointwise
from ._node import Node

ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_NOTHING = 1e-7  # SOFTMAX_ZERO takes smaller scores for "no vote"


def rows(node: Node, index: int = 0) -> relax.Expr:
    """Input `index` as [rows, features]; a vector is one row. The number of features must be fixed."""
    shape = node.shape(index)
    node.refuse_unless(len(shape) in (1, 2), f"expected one or two dimensions, found {len(shape)}")
    node.refuse_unless(isinstance(shape[-1], int), f"expected a fixed number of features, found {shape[-1]}")
    x = node.x(index)
    return x if len(shape) == 2 else node.emit(relax.op.reshape(x, (1, shape[0])))


def floats(node: Node, name: str, default: list[float] | None = None) -> np.ndarray:
    """A list of numbers as float32."""
    values = node.attr(name, default) if default is not None else node.attr(name)
    return np.asarray(values, np.float32).reshape(-1)


def table(node: Node, name: str, *sizes: int) -> np.ndarray:
    """A list of numbers as float32 of these sizes."""
    values = floats(node, name)
    wanted = " x ".join(map(str, sizes))
    node.refuse_unless(values.size == math.prod(sizes), f"expected {wanted} numbers in {name}, found {values.size}")
    return values.reshape(sizes)


def weight(node: Node, array: np.ndarray) -> relax.Expr:
    """An array as a parameter of the model, or a constant where it is small."""
    from ..meaning.constant import Constant

    return node.graph.expr_of(Constant.of(array, f"{node.name}_{node.op.lower()}"))


def class_labels(node: Node, ints: str, strings: str) -> np.ndarray:
    """The labels as int64 [classes]; strings are refused."""
    node.refuse_unless(not node.attr(strings, []), "labels are strings: expected whole numbers")
    labels = np.asarray(node.attr(ints, []), np.int64)
    node.refuse_unless(labels.size > 0, f"expected class labels in {ints}, found none")
    return labels


def labelled(node: Node, index: relax.Expr, labels: np.ndarray) -> relax.Expr:
    """Labels [rows] of the classes that `index` [rows] names."""
    if np.array_equal(labels, np.arange(labels.size)):
        return node.cast(index, "int64")
    return node.emit(relax.op.take(relax.const(labels, "int64"), index, axis=0, mode="clip"))


def transformed(node: Node, scores: relax.Expr, kind: str) -> relax.Expr:
    """Scores [rows, classes] after the post transform `kind`."""
    node.refuse_unless(kind in TRANSFORMS, f"expected one of {', '.join(TRANSFORMS)} as post_transform, found {kind}")
    if kind == "SOFTMAX":
        return node.emit(relax.op.nn.softmax(scores, -1))
    if kind == "LOGISTIC":
        return node.emit(relax.op.sigmoid(scores))
    if kind == "PROBIT":
        return pointwise(node, _probit, scores, name="probit")
    return _softmax_zero(node, scores) if kind == "SOFTMAX_ZERO" else scores


def _softmax_zero(node: Node, scores: relax.Expr) -> relax.Expr:
    """Softmax in which zeros stay (nearly) zeros."""
    largest = node.emit(relax.op.max(scores, -1, keepdims=True))

    def power(score: Scalar, top: Scalar) -> Scalar:
        dtype = str(score.ty.dtype)
        return tirx.Select(
            tirx.abs(score) > const(_NOTHING, dtype), tirx.exp(score - top), score * tirx.exp(const(0, dtype) - top)
        )

    powers = pointwise(node, power, scores, largest, name="softmax_zero")
    total = node.emit(relax.op.sum(powers, -1, keepdims=True))
    return node.emit(relax.op.divide(powers, total))


def _probit(score: Scalar) -> Scalar:
    """The quantile of the normal distribution, by an approximation of the inverse error function."""

    def number(value: float) -> Scalar:
        return const(value, "float64")

    x = score.astype("float64") * number(2) - number(1)  # near 0 the formula cancels: float64
    log = tirx.log((number(1) - x) * (number(1) + x))
    a = number(2 / (3.14159 * 0.147)) + log * number(0.5)
    root = tirx.sqrt(tirx.sqrt(a * a - log * number(1 / 0.147)) - a)
    return (tirx.Select(x < number(0), number(0) - root, root) * number(2**0.5)).astype(str(score.ty.dtype))


def columns(node: Node, *scores: relax.Expr) -> relax.Expr:
    """Scores [rows, 1] side by side."""
    return node.emit(relax.op.concat(list(scores), axis=1))


def column(node: Node, scores: relax.Expr, index: int) -> relax.Expr:
    """Column `index` of [rows, columns] as [rows, 1]."""
    if len(expr_shape(scores)) == 2 and expr_shape(scores)[1] == 1:
        return scores
    return node.emit(relax.op.strided_slice(scores, axes=[1], begin=[index], end=[index + 1]))
