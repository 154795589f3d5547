"""Operators of onnxruntime on quantised tensors: in float32 between two quantisations."""

from __future__ import annotations

from tvm import relax

from ..meaning.builder import expr_shape
from ._integer import centred, saturated
from ._node import Node
from ._registry import converter
from ._spell import add, cast, concat, divide, multiply, select

_MS = "com.microsoft"


def _real(node: Node, x: int, scale: int, zero: int) -> relax.Expr:
    """(x - zero) * scale of three inputs."""
    _single(node, scale, zero)
    centre = centred(node, node.x(x), node.x(zero) if node.has(zero) else None)
    return multiply(node, cast(node, centre, "float32"), node.x(scale))


def _single(node: Node, *indices: int) -> None:
    for index in indices:
        count = node.sizes.product(node.shape(index)) if node.has(index) else 1
        node.refuse_unless(
            isinstance(count, int) and count == 1, f"expected one number as input {index}, found {count}"
        )


def _again(node: Node, y: relax.Expr, scale: int, zero: int, dtype: str) -> relax.Expr:
    _single(node, scale, zero)
    return saturated(node, divide(node, y, node.x(scale)), node.x(zero) if node.has(zero) else None, dtype)


@converter("QLinearAdd", domain=_MS)
def qlinear_add(node: Node) -> relax.Expr:
    return _again(node, add(node, _real(node, 0, 1, 2), _real(node, 3, 4, 5)), 6, 7, node.dtype(0))


@converter("QLinearMul", domain=_MS)
def qlinear_mul(node: Node) -> relax.Expr:
    return _again(node, multiply(node, _real(node, 0, 1, 2), _real(node, 3, 4, 5)), 6, 7, node.dtype(0))


@converter("QLinearConcat", domain=_MS)
def qlinear_concat(node: Node) -> relax.Expr:
    count = (len(node.inputs) - 2) // 3
    parts = [_real(node, i, i + 1, i + 2) for i in range(2, 2 + 3 * count, 3)]
    axis = int(node.attr("axis"))
    return _again(node, concat(node, parts, axis + node.rank(2) if axis < 0 else axis), 0, 1, node.dtype(2))


@converter("QLinearSoftmax", domain=_MS)
def qlinear_softmax(node: Node) -> relax.Expr:
    rank, axis = node.rank(0), int(node.attr("axis", -1))
    axis += rank if axis < 0 else 0
    old = int(node.attr("opset", 0)) < 13
    node.refuse_unless(not old or axis == rank - 1, f"expected the last axis before opset 13, found {axis}")
    return _again(node, node.emit(relax.op.nn.softmax(_real(node, 0, 1, 2), axis)), 3, 4, node.dtype(0))


@converter("QLinearSigmoid", domain=_MS)
def qlinear_sigmoid(node: Node) -> relax.Expr:
    return _again(node, node.emit(relax.op.sigmoid(_real(node, 0, 1, 2))), 3, 4, node.dtype(0))


@converter("QLinearLeakyRelu", domain=_MS)
def qlinear_leaky_relu(node: Node) -> relax.Expr:
    y = node.emit(relax.op.nn.leakyrelu(_real(node, 0, 1, 2), float(node.attr("alpha", 0.01))))
    return _again(node, y, 3, 4, node.dtype(0))


@converter("QLinearGlobalAveragePool", domain=_MS)
def qlinear_global_average_pool(node: Node) -> relax.Expr:
    node.refuse_unless(not node.attr("channels_last", 0), "expected channels_last=0, found 1")
    x = _real(node, 0, 1, 2)
    axes = list(range(2, len(expr_shape(x))))
    return _again(node, node.emit(relax.op.mean(x, axes, True)), 3, 4, node.dtype(0))


@converter("QLinearWhere", domain=_MS)
def qlinear_where(node: Node) -> relax.Expr:
    y = select(node, node.x(0), _real(node, 1, 2, 3), _real(node, 4, 5, 6))
    return _again(node, y, 7, 8, node.dtype(1))


@converter("QLinearReduceMean", domain=_MS)
def qlinear_reduce_mean(node: Node) -> relax.Expr:
    x = _real(node, 0, 1, 2)
    axes = [int(a) for a in node.attr("axes", list(range(node.rank(0))))]
    y = node.emit(relax.op.mean(x, axes, bool(node.attr("keepdims", 1))))
    return _again(node, y, 3, 4, node.dtype(0))
