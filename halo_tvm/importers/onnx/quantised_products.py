"""Products and convolutions of quantised tensors: integers are multiplied exactly, and summed in int32."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from ._integer import integer_product, saturated, vector_for
from ._integer_convolution import integer_convolution
from ._node import Node
from ._registry import converter
from ._spell import add, divide, multiply, rounded, scaled, transpose, turned
from ._windows import window_of
from .contrib_attention import projected_attention
from .quantisation import quantised


def _zero(node: Node, index: int) -> Constant | relax.Expr | None:
    """A zero point: known where it can be, None where it is missing or 0."""
    if not node.has(index):
        return None
    if node.is_known(index):
        return None if not np.any(node.constant(index)) else node.value(index)
    return node.x(index)


def _of_rows(node: Node, index: int, rank: int) -> relax.Expr | None:
    """Zero point or scale of A: one number, or one per row."""
    return vector_for(node, node.x(index), rank, max(rank - 2, 0)) if node.has(index) else None


def _of_columns(node: Node, index: int, rank: int) -> relax.Expr | None:
    return vector_for(node, node.x(index), rank, rank - 1) if node.has(index) else None


def _b_zero(node: Node, index: int, b: int) -> Constant | relax.Expr | None:
    """Zero point of B: one number, or one per column."""
    zero = _zero(node, index)
    return (
        zero
        if zero is None or isinstance(zero, Constant) and len(zero.shape) < 2
        else _of_columns(node, index, node.rank(b))
    )


def _product(node: Node, a: int, b: int, a_zero: int, b_zero: int) -> relax.Expr:
    left = None if _zero(node, a_zero) is None else _of_rows(node, a_zero, node.rank(a))
    zero = _b_zero(node, b_zero, b)
    for index in (a, b):
        node.refuse_unless(
            node.dtype(index) in ("int8", "uint8"), f"expected 8-bit integers, found {node.dtype(index)}"
        )
    return integer_product(node, node.x(a), node.value(b), left, zero)


@converter("MatMulInteger")
def matmul_integer(node: Node) -> relax.Expr:
    return _product(node, 0, 1, 2, 3)


@converter("MatMulIntegerToFloat", domain="com.microsoft")
def matmul_integer_to_float(node: Node) -> relax.Expr:
    """(A - a_zero) @ (B - b_zero) * a_scale * b_scale + bias."""
    out = node.cast(_product(node, 0, 1, 4, 5), "float32")
    rank = len(expr_shape(out))
    scale = multiply(node, _of_rows(node, 2, rank), _of_columns(node, 3, rank))
    out = multiply(node, out, node.cast(scale, "float32"))
    if node.has(6):
        out = add(node, out, node.cast(node.x(6), "float32"))
    return node.cast(out, node.dtype(2))


@converter("DynamicQuantizeMatMul", domain="com.microsoft")
def dynamic_quantize_matmul(node: Node) -> relax.Expr:
    """A, quantised over its own range, times the quantised B."""
    a, scale, a_zero = quantised(node, node.x(0))
    b_zero = _b_zero(node, 3, 1)
    out = node.cast(integer_product(node, a, node.value(1), a_zero, b_zero), "float32")
    out = multiply(node, out, multiply(node, scale, _of_columns(node, 2, len(expr_shape(out)))))
    return add(node, out, node.x(4)) if node.has(4) else out


@converter("QLinearMatMul")
def qlinear_matmul(node: Node) -> relax.Expr:
    total = node.cast(_product(node, 0, 3, 2, 5), "float32")
    rank, kind = len(expr_shape(total)), node.dtype(1)
    dtype = node.dtype(7) if node.has(7) else node.dtype(0)
    if (
        kind == "float32"
        and all(node.rank(index) < 2 for index in (1, 4, 6))
        and node.sizes.product(node.shape(1)) == 1
    ):
        scale = vector_for(node, _joint_scale(node, 1, 4, 6), rank, rank - 1)
        return saturated(node, multiply(node, total, scale), _of_rows(node, 7, rank), dtype)
    found = (_of_rows(node, 1, rank), _of_columns(node, 4, rank), _of_rows(node, 6, rank))
    left, right, out_scale = (node.cast(x, "float32") for x in found)
    scale = divide(node, rounded(node, multiply(node, left, right), kind), out_scale)
    out = multiply(node, total, rounded(node, scale, kind))
    return saturated(node, out, _of_rows(node, 7, rank), dtype)


@converter("QAttention", domain="com.microsoft")
def q_attention(node: Node) -> tuple[relax.Expr | None, ...]:
    """Attention whose projection multiplies bytes."""
    total = node.cast(_product(node, 0, 1, 6, 7), "float32")
    scale = multiply(node, _of_rows(node, 3, 3), _of_columns(node, 4, 3))
    projected = add(node, multiply(node, total, scale), node.x(2))
    return projected_attention(node, projected, mask=5, cached=8, bias=len(node.inputs))


@converter("QGemm", domain="com.microsoft")
def q_gemm(node: Node) -> relax.Expr:
    """alpha * a_scale * b_scale * (op(A) @ op(B) + C), C in int32; quantised again where y_scale is given."""
    a, b = node.x(0), node.value(3)
    a_zero, b_zero = _of_rows(node, 2, 0), _b_zero(node, 5, 3)
    if node.attr("transA", 0):
        a = transpose(node, a, (1, 0))
    if node.attr("transB", 0):
        b = turned(node, b, (1, 0))
    total = integer_product(node, a, b, a_zero, b_zero)
    if node.has(6):
        total = add(node, total, node.x(6))
    out = node.cast(total, "float32")
    alpha = float(node.attr("alpha", 1.0))
    if alpha == 1.0 and node.has(7):
        scale = vector_for(node, _joint_scale(node, 1, 4, 7), 2, 1)
    else:
        scale = scaled(node, multiply(node, _of_rows(node, 1, 2), _of_columns(node, 4, 2)), alpha)
        if not node.has(7):
            return multiply(node, out, scale)
        scale = divide(node, scale, _of_rows(node, 7, 2))
    return saturated(
        node, multiply(node, out, scale), _of_rows(node, 8, 2), node.dtype(8) if node.has(8) else node.dtype(0)
    )


def _joint_scale(node: Node, x: int, w: int, y: int) -> relax.Expr:
    """x_scale * w_scale / y_scale, one number or a vector: now where all are known, in the same float32 steps."""
    if not all(node.is_known(index) for index in (x, w, y)):
        return divide(node, multiply(node, _of_rows(node, x, 1), node.x(w)), _of_rows(node, y, 1))
    scales = [np.atleast_1d(node.constant(index)) for index in (x, w, y)]
    with np.errstate(all="ignore"):
        return node.graph.expr_of(Constant.of(scales[0] * scales[1] / scales[2], f"{node.name}_scale"))


@converter("ConvInteger")
def conv_integer(node: Node) -> relax.Expr:
    return _convolved(node, 0, 1, 2, 3)


@converter("QLinearConv", domain="com.microsoft")
def contrib_qlinear_conv(node: Node) -> relax.Expr:
    """QLinearConv, perhaps of an image whose channels come last; the weight is [out, in, ...] there too."""
    rank = node.rank(0)
    if not node.attr("channels_last", 0):
        return qlinear_conv(node)
    x = node.graph.as_value(node, transpose(node, node.x(0), (0, rank - 1, *range(1, rank - 1))))
    y = node.emit(qlinear_conv(Node(node.proto, node.graph, [x, *node.inputs[1:]], node.opset)))
    return transpose(node, y, (0, *range(2, rank), 1))


@converter("QLinearConv")
def qlinear_conv(node: Node) -> relax.Expr:
    total = _convolved(node, 0, 3, 2, 5)
    rank = len(expr_shape(total))
    if node.has(8):
        total = add(node, total, vector_for(node, node.x(8), rank, 1))
    scale = vector_for(node, _joint_scale(node, 1, 4, 6), rank, 1)
    dtype = node.dtype(7) if node.has(7) else node.dtype(0)
    return saturated(node, multiply(node, node.cast(total, "float32"), scale), _of_rows(node, 7, rank), dtype)


def _convolved(node: Node, x: int, w: int, x_zero: int, w_zero: int) -> relax.Expr:
    """Convolution of integers around their zero points in int32; padding is 0 after the zero point is taken off."""
    kernel = node.shape(w)[2:]
    window = window_of(node, kernel, node.rank(x) - 2)
    zero = None if _zero(node, x_zero) is None else _of_rows(node, x_zero, node.rank(x))
    zeros: np.ndarray | relax.Expr = np.zeros(1, np.int32)
    if node.has(w_zero):
        outer, found = node.shape(w)[0], node.sizes.product(node.shape(w_zero))
        node.refuse_unless(found in (1, outer), f"expected one zero point of the weight, or {outer}, found {found}")
        zeros = node.constant(w_zero).astype(np.int32).reshape(-1) if node.is_known(w_zero) else node.x(w_zero)
    return integer_convolution(node, node.x(x), node.value(w), zero, zeros, window, int(node.attr("group", 1)))
