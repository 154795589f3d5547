"""QuantizeLinear and DequantizeLinear around products and convolutions: these multiply the integers.

Before -> after
    MatMul(DequantizeLinear(q, s, z), DequantizeLinear(w, t))   ->   float32((q - z) @ w) * (s * t)
    Gemm, Conv, with their biases in float32                    ->   the same
    QuantizeLinear(DequantizeLinear(q, s, z), s, z)             ->   q
    QuantizeLinear(Concat(x, y)), x and y restored from bytes   ->   Concat(QuantizeLinear(x), QuantizeLinear(y))
A QuantizeLinear behind fuses into the product, so that between two of them a tensor is bytes.
The sums are those of onnxruntime's integer kernels; its unoptimised graph sums floats instead, which may round the
other way where a result lies in the middle of two integers.
"""

from __future__ import annotations

from tvm import relax

from ..meaning.constant import Constant
from ..meaning.convolution import with_bias
from . import quantisation
from ._integer import integer_product, vector_for
from ._integer_convolution import integer_convolution
from ._node import Node
from ._quantised import Quantised
from ._registry import in_integers
from ._spell import add, multiply, turned
from ._values import Tensor, Value
from ._windows import window_of
from .shape import concat


@in_integers("QuantizeLinear")
def quantize(node: Node) -> Value | None:
    """The integers that the input was restored from, where the grid is the same; those of its parts, joined."""
    source, join = node.graph.quantised.of(node.value(0)), node.graph.quantised.joined(node.value(0))
    if join is not None:
        return _joined(node, join)
    scale, zero = (node.inputs[i] if node.has(i) else None for i in (1, 2))
    if source is None or not isinstance(scale, Constant) or not (zero is None or isinstance(zero, Constant)):
        return None
    dtype = source.integers.dtype if zero is None and source.integers.dtype == "uint8" else zero and zero.dtype
    if dtype != source.integers.dtype or node.attr("output_dtype", 0) or node.attr("precision", 0):
        return None
    return source.integers if source.same_grid(Quantised(source.integers, scale, zero)) else None


def _joined(node: Node, join: Node) -> relax.Expr | None:
    """The parts of `join` on the grid of `node`, joined as bytes: a quarter of what floats are to copy."""
    zero = node.inputs[2] if node.has(2) else None
    if not isinstance(zero, Constant) or zero.dtype not in ("int8", "uint8") or node.sizes.product(node.shape(1)) != 1:
        return None
    parts: list[Value | None] = []
    for value in join.inputs:
        part = Node(node.proto, node.graph, [value, *node.inputs[1:]], node.opset)
        found = quantize(part)
        parts.append(found if found is not None else node.graph.as_value(part, quantisation.quantize(part)))
    return concat(Node(join.proto, node.graph, parts, join.opset))


@in_integers("MatMul")
def matmul(node: Node) -> relax.Expr | None:
    x, weight = _pair(node)
    if x is None or len(weight.integers.shape) != 2 or len(x.integers.shape) < 2:
        return None
    return _product(node, x, weight, weight.integers, 1)


@in_integers("Gemm")
def gemm(node: Node) -> relax.Expr | None:
    x, weight = _pair(node)
    scaled = float(node.attr("alpha", 1.0)) != 1.0 or node.has(2) and float(node.attr("beta", 1.0)) != 1.0
    if x is None or scaled or node.attr("transA", 0):
        return None
    b, columns = weight.integers, 1
    if node.attr("transB", 0):
        b, columns = turned(node, b, (1, 0)), 0
    out = _product(node, x, weight, b, columns)
    return add(node, out, node.x(2)) if out is not None and node.has(2) else out


@in_integers("Conv")
def conv(node: Node) -> relax.Expr | None:
    x, weight = _pair(node)
    groups = int(node.attr("group", 1))
    if x is None or not _fits(weight, 0):
        return None
    outer, inner, *kernel = node.shape(1)
    if groups > 1 and inner == 1 and outer != groups:  # a convolution of floats in either form
        return None
    window = window_of(node, kernel, len(kernel))
    zero = relax.const(x.zeros[0].astype(x.integers.dtype), x.integers.dtype)
    total = integer_convolution(node, x.integers.expr, weight.integers, zero, weight.zeros, window, groups, floats=True)
    out = multiply(node, node.cast(total, "float32"), _scale(node, x, weight, len(kernel) + 2, 1))
    return with_bias(node, out, node.x(2) if node.has(2) else None)


def _pair(node: Node) -> tuple[Quantised, Quantised] | tuple[None, None]:
    """Integer rows on one grid and an integer weight that is known; (None, None) for anything else."""
    x, weight = (node.graph.quantised.of(node.value(i)) for i in (0, 1))
    if x is None or weight is None or not x.of_tensor:
        return None, None
    if not isinstance(x.integers, Tensor) or not isinstance(weight.integers, Constant):
        return None, None
    return x, weight


def _fits(weight: Quantised, columns: int) -> bool:
    """Whether scale and zero points are single numbers, or run along the columns of the product."""
    count = weight.integers.shape[columns]
    sizes = (weight.scales.size, weight.zeros.size)
    return all(size == 1 or (size == count and weight.axis == columns) for size in sizes)


def _product(node: Node, x: Quantised, weight: Quantised, b: Constant, columns: int) -> relax.Expr | None:
    if not _fits(weight, columns):
        return None
    zero = relax.const(x.zeros[0].astype(x.integers.dtype), x.integers.dtype)
    b_zero = Constant.of(weight.zeros.astype(b.dtype) if weight.zeros.size > 1 else weight.zeros[0].astype(b.dtype))
    total = integer_product(node, x.integers.expr, b, zero, b_zero)
    rank = len(x.integers.shape)
    return multiply(node, node.cast(total, "float32"), _scale(node, x, weight, rank, rank - 1))


def _scale(node: Node, x: Quantised, weight: Quantised, rank: int, axis: int) -> relax.Expr:
    """x's scale times the weight's, one number or one per column along `axis`."""
    scales = Constant.of(x.scales[0] * weight.scales, f"{node.name}_scale")
    return vector_for(node, node.graph.expr_of(scales), rank, axis)
