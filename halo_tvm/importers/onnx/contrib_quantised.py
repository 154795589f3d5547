"""Operators of onnxruntime on quantised tensors: in float32 between two quantisations."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .._bits import unpacked
from ..meaning.constant import Constant
from ._integer import centred, saturated
from ._node import Node
from ._quantised import Quantised
from ._registry import converter
from ._spell import add, concat, derived, divide, multiply, select, transpose
from .contrib_norms import embedded
from .indexing import inside
from .pooling import averaged

_MS = "com.microsoft"


def _real(node: Node, x: int, scale: int, zero: int) -> relax.Expr:
    """(x - zero) * scale of three inputs."""
    _single(node, scale, zero)
    centre = centred(node, node.x(x), node.x(zero) if node.has(zero) else None)
    return multiply(node, node.cast(centre, "float32"), node.x(scale))


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
    """Parts are rounded, then joined: bytes are a quarter of what floats are to copy."""
    parts, dtype = range(2, len(node.inputs), 3), node.dtype(2)
    for i in parts:
        node.refuse_unless(node.dtype(i) == dtype, f"expected parts of {dtype}, found {node.dtype(i)}")
    bytes_ = [
        node.x(i) if _same_grid(node, i, 0) else _again(node, _real(node, i, i + 1, i + 2), 0, 1, dtype) for i in parts
    ]
    return concat(node, bytes_, node.axis(node.attr("axis"), node.rank(2)))


def _same_grid(node: Node, x: int, scale: int) -> bool:
    """Whether input `x`, with its scale and zero point behind it, lies on the grid that begins at input `scale`."""
    if not all(node.is_known(i) for i in (x + 1, x + 2, scale, scale + 1)):
        return False
    part, *grid = (node.inputs[i] for i in (x, x + 1, x + 2, scale, scale + 1))
    return Quantised(part, *grid[:2]).same_grid(Quantised(part, *grid[2:]))


@converter("QLinearSoftmax", domain=_MS)
def qlinear_softmax(node: Node) -> relax.Expr:
    rank = node.rank(0)
    axis = node.axis(node.attr("axis", -1), rank)
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
    x = _real(node, 0, 1, 2)
    first = 1 if node.attr("channels_last", 0) else 2
    y = node.emit(relax.op.mean(x, list(range(first, first + node.rank(0) - 2)), True))
    return _again(node, y, 3, 4, node.dtype(0))


@converter("QLinearAveragePool", domain=_MS)
def qlinear_average_pool(node: Node) -> relax.Expr:
    x, rank = _real(node, 0, 1, 2), node.rank(0)
    if not node.attr("channels_last", 0):
        return _again(node, averaged(node, x), 3, 4, node.dtype(0))
    y = averaged(node, transpose(node, x, (0, rank - 1, *range(1, rank - 1))))
    return _again(node, transpose(node, y, (0, *range(2, rank), 1)), 3, 4, node.dtype(0))


@converter("QEmbedLayerNormalization", domain=_MS)
def q_embed_layer_norm(node: Node) -> tuple[relax.Expr | None, ...]:
    """EmbedLayerNormalization of tables in eight bits, which are restored before they are read."""
    tables = [_real(node, i, i + 6, i + 11) if node.has(i) else None for i in range(2, 7)]
    return embedded(node, tables, mask=7)


@converter("GatherBlockQuantized", domain=_MS)
def gather_block_quantized(node: Node) -> relax.Expr:
    """Rows of a table of 4 or 8 bits in blocks along its last axis; the table is restored when it is loaded."""
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size", 128))
    rank = node.rank(0)
    axes = [node.axis(node.attr(name, default), rank) for name, default in (("gather_axis", 0), ("quantize_axis", 1))]
    node.refuse_unless(axes == [0, rank - 1], f"expected rows gathered, blocks along the last axis, found axes {axes}")
    for index in (0, 2, 3):
        known = not node.has(index) or node.is_known(index)
        node.refuse_unless(known, f"input {index} of GatherBlockQuantized must be constant")
    table, scales = node.value(0), node.value(2)
    zero = node.value(3) if node.has(3) else None
    packed = table.dtype == "uint8"
    fits = bits in (4, 8) if packed else table.dtype in ("int4", "uint4")
    node.refuse_unless(fits, f"expected 4 or 8 bits in uint8, int4 or uint4, found {bits} in {table.dtype}")
    shape = (*table.shape[:-1], table.shape[-1] * (8 // bits if packed else 1))

    def numbers(x: Constant) -> np.ndarray:
        return (unpacked(x.array, bits) if packed else x.array).astype(np.float32)

    def by_block(x: np.ndarray) -> np.ndarray:
        return np.repeat(x.astype(np.float32), block, -1)[..., : shape[-1]]

    def restored() -> np.ndarray:
        middle = 2 ** (bits - 1) if packed else 0
        centre = middle if zero is None else by_block(numbers(zero)[..., : scales.shape[-1]])
        return ((numbers(table) - centre) * by_block(scales.array)).astype(scales.dtype)

    rows = node.graph.expr_of(derived(table, restored, scales.dtype, shape))
    return relax.op.take(rows, inside(node, node.x(1), shape[0]), 0, mode="clip")


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
