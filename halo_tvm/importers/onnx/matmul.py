"""Matrix products: MatMul, Gemm and the fused forms of onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
from tvm import relax

from ...dimensions import is_one
from ...relay_ops.linear import Linear
from .._bits import unpacked
from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.constant import Constant
from ._node import Node
from ._registry import converter, find
from ._spell import add, derived, number, scaled, transpose, turned
from ._values import Tensor

_LINEAR = ("float32", "float16", "bfloat16")
ACTIVATIONS = {
    "Relu": relax.op.nn.relu,
    "Tanh": relax.op.tanh,
    "Sigmoid": relax.op.sigmoid,
}
# What onnxruntime fuses into a Gemm, in the spelling of an opset that has them all.
_FUSED = (*ACTIVATIONS, "Elu", "HardSigmoid", "LeakyRelu", "Selu", "Softplus", "Softsign", "ThresholdedRelu")
_OPSET = 13


@converter("MatMul")
def matmul(node: Node) -> relax.Expr:
    return product(node, node.x(0), node.value(1))


def product(node: Node, x: relax.Expr, weight: object) -> relax.Expr:
    """x @ weight; a matrix whose values are known is a weight of `halo.linear`."""
    right = node.graph.expr_of(weight)
    is_weight = isinstance(weight, Constant) and len(weight.shape) == 2 and weight.dtype in _LINEAR
    if is_weight and isinstance(right, relax.Var) and len(expr_shape(x)) >= 2 and expr_dtype(x) == weight.dtype:
        x = same_sizes(node, x, [*expr_shape(x)[:-1], weight.shape[0]], "rows")
        return node.emit(Linear.call(x, right, layout="kn", n=weight.shape[1]))
    return dot(node, x, right)


def dot(node: Node, a: relax.Expr, b: relax.Expr, out_dtype: str | None = None) -> relax.Expr:
    """Product of two tensors; sizes that meet are declared equal where that is not known, leading ones broadcast."""
    shape_a, shape_b = expr_shape(a), expr_shape(b)
    node.refuse_unless(bool(shape_a and shape_b), "expected factors with dimensions, found a single number")
    back = -2 if len(shape_b) > 1 else -1
    if isinstance(shape_b[back], int) and not isinstance(shape_a[-1], int):
        a = same_sizes(node, a, [*shape_a[:-1], shape_b[back]], "the left factor")
    else:
        wanted = list(shape_b)
        wanted[back] = shape_a[-1]
        b = same_sizes(node, b, wanted, "the right factor")
    shape_a, shape_b = expr_shape(a), expr_shape(b)
    if len(shape_a) > 2 and len(shape_b) > 2:
        lead_a, lead_b = shape_a[:-2], shape_b[:-2]
        rank = max(len(lead_a), len(lead_b))
        pairs = list(zip([1] * (rank - len(lead_a)) + lead_a, [1] * (rank - len(lead_b)) + lead_b))
        if not all(is_one(d) or is_one(e) or node.sizes.is_equal(d, e) for d, e in pairs):
            b = _declared(node, b, lead_a)
    return node.emit(relax.op.matmul(a, b, out_dtype))


def _declared(node: Node, b: relax.Expr, lead: list) -> relax.Expr:
    """`b` with its leading dimensions declared equal to `lead`, counted from the right, unless one of the two is 1."""
    dims = list(expr_shape(b))
    for back in range(1, min(len(lead), len(dims) - 2) + 1):
        wanted, at = lead[-back], len(dims) - 2 - back
        if is_one(wanted) or is_one(dims[at]):
            continue
        if isinstance(wanted, int) and isinstance(dims[at], int) and wanted != dims[at]:
            node.refuse(f"leading dimensions {wanted} and {dims[at]} cannot be multiplied")
        dims[at] = wanted
    return node.declared(b, dims)


@converter("Gemm")
def gemm(node: Node) -> relax.Expr:
    """alpha * op(A) @ op(B) + beta * C."""
    return _gemm(node)


@converter("FusedGemm", domain="com.microsoft")
def fused_gemm(node: Node) -> relax.Expr:
    """An activation of Gemm, by the operator of that name with the numbers that begin with activation_."""
    name, out = node.attr("activation", ""), _gemm(node)
    if name == "":
        return out
    node.refuse_unless(
        name in _FUSED, f"expected the activation {', '.join(_FUSED[:-1])} or {_FUSED[-1]}, found {name}"
    )
    given = ("alpha", "beta", "gamma")
    attrs = {key: node.attr(f"activation_{key}") for key in given if node.has_attr(f"activation_{key}")}
    proto = onnx.helper.make_node(name, ["x"], list(node.outputs), name=node.name, **attrs)
    return find("", name, _OPSET)(Node(proto, node.graph, [Tensor(node.emit(out))], _OPSET))


def _gemm(node: Node) -> relax.Expr:
    alpha, beta = float(node.attr("alpha", 1.0)), float(node.attr("beta", 1.0))
    dtype = node.dtype(0)
    if not dtype.startswith(("float", "bfloat")):
        whole = alpha.is_integer() and beta.is_integer()
        node.refuse_unless(whole, f"expected whole alpha and beta for {dtype}, found {alpha} and {beta}")
    a = node.x(0)
    if node.attr("transA", 0):
        a = transpose(node, a, (1, 0))
    b = turned(node, node.value(1), (1, 0) if node.attr("transB", 0) else (0, 1))
    out = _scaled(node, product(node, a, b), alpha)
    if not node.has(2) or beta == 0.0:
        return out
    return add(node, out, _scaled(node, node.x(2), beta))


def _scaled(node: Node, x: relax.Expr, factor: float) -> relax.Expr:
    if factor == 1.0:
        return x
    dtype = expr_dtype(x)
    value = factor if dtype.startswith(("float", "bfloat")) else int(factor)
    return node.emit(relax.op.multiply(x, number(value, dtype)))


@converter("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
def fused_matmul(node: Node) -> relax.Expr:
    """alpha * op(A) @ op(B); op moves the first axis behind the batch axes, and then exchanges the last two."""

    def axes(index: int, side: str) -> list[int]:
        rank = node.rank(index)
        order = list(range(rank))
        if node.attr(f"transBatch{side}", 0) and rank > 2:
            order = [*range(1, rank - 1), 0, rank - 1]
        if node.attr(f"trans{side}", 0) and rank > 1:
            order[-2:] = order[-1], order[-2]
        return order

    a = node.graph.expr_of(turned(node, node.value(0), axes(0, "A")))
    return scaled(node, product(node, a, turned(node, node.value(1), axes(1, "B"))), float(node.attr("alpha", 1.0)))


@converter("MatMulNBits", domain="com.microsoft")
def matmul_n_bits(node: Node) -> relax.Expr:
    """A @ W^T (+ bias), W [n, k] of 2, 4 or 8 bits in blocks along k; the weight is restored when it is loaded.

    g_idx [k] names the block whose scale and zero point an element has, where these are not its own block's.
    """
    k, n, block = (int(node.attr(name)) for name in ("K", "N", "block_size"))
    bits = int(node.attr("bits", 4))
    node.refuse_unless(not node.attr("weight_prepacked", 0), "expected weights in rows, found packed ones")
    node.refuse_unless(bits in (2, 4, 8), f"expected 2, 4 or 8 bits, found {bits}")
    for index in (1, 2, 3, 4):
        if node.has(index):
            node.refuse_unless(node.is_known(index), f"input {index} of MatMulNBits must be constant")
    weight, scales = node.value(1), node.value(2)
    zero = node.value(3) if node.has(3) else None
    dtype = node.dtype(0)
    blocks = -(-k // block)
    order = _reordered(node, k, block) if node.has(4) else None

    def spread(x: np.ndarray) -> np.ndarray:
        """One number per block as numbers that broadcast to the weight."""
        x = x.astype(np.float32)
        return x[:, :, None] if order is None else x[:, order]

    def restored() -> np.ndarray:
        q = unpacked(weight.array.reshape(n, blocks, -1), bits)[:, :, :block].astype(np.float32)
        if order is not None:
            q = q.reshape(n, blocks * block)[:, :k]
        if zero is None:
            q -= 2 ** (bits - 1)
        elif zero.dtype == "uint8":
            q -= spread(unpacked(zero.array.reshape(n, -1), bits)[:, :blocks])
        else:
            q -= spread(zero.array.reshape(n, blocks))
        q *= spread(scales.array.reshape(n, blocks))
        return np.ascontiguousarray(q.reshape(n, -1)[:, :k].T).astype(dtype)

    out = product(node, node.x(0), derived(weight, restored, dtype, (k, n)))
    return add(node, out, node.x(5)) if node.has(5) else out


def _reordered(node: Node, k: int, block: int) -> np.ndarray | None:
    """The block of each element along k, from g_idx; None where elements lie in their blocks one behind the other."""
    order, blocks = node.constant(4).reshape(-1)[:k], -(-k // block)
    node.refuse_unless(order.size == k, f"expected {k} numbers of blocks in g_idx, found {order.size}")
    strange = order[(order < 0) | (order >= blocks)]
    node.refuse_unless(
        not strange.size, f"expected numbers of blocks from 0 to {blocks - 1} in g_idx, found {strange[:1]}"
    )
    return None if np.array_equal(order, np.arange(k) // block) else order


@converter("GemmFloat8", domain="com.microsoft")
def gemm_float8(node: Node) -> relax.Expr:
    node.refuse("8-bit floats are not compiled: export the model in float16 or float32")
