"""Rotary position embeddings, of ONNX and of onnxruntime: `halo.rotary` with the caches as tables."""

from __future__ import annotations

from tvm import relax

from ...relay_ops.rotary import Rotary
from ..meaning.builder import expr_shape
from ._node import Node
from ._registry import converter
from ._spell import add, concat, cut, transpose
from .attention import split_heads

_SWAP = (0, 2, 1, 3)


@converter("RotaryEmbedding", since=23)
def rotary_embedding(node: Node) -> relax.Expr:
    """X [b, heads, s, d] or [b, s, heads * d]; caches [p, r/2] with position_ids, or [b, s, r/2]."""
    cos, sin = node.x(1), node.x(2)
    positions = node.x(3) if node.has(3) else None
    if positions is None:
        b, s, half = expr_shape(cos)
        rows = node.sizes.product([b, s])
        cos, sin = (node.reshape(x, [rows, half]) for x in (cos, sin))
        positions = node.reshape(node.emit(relax.op.arange(0, rows, 1, "int64")), [b, s])
    return _rotated(node, positions, cos, sin)


@converter("RotaryEmbedding", domain="com.microsoft")
def contrib_rotary_embedding(node: Node) -> relax.Expr:
    """As above; position_ids [b, s], or one number: the position of the first."""
    node.refuse_unless(not node.attr("is_packed_batching", 0), "expected is_packed_batching=0, found 1")
    node.refuse_unless(float(node.attr("scale", 1.0)) == 1.0, f"expected scale=1, found {node.attr('scale', 1.0)}")
    positions = node.x(1)
    if len(expr_shape(positions)) < 2:
        length = node.shape(0)[2 if node.rank(0) == 4 else 1]
        first = node.reshape(positions, [1])
        positions = add(node, node.emit(relax.op.arange(0, length, 1, "int64")), node.cast(first, "int64"))
    return _rotated(node, positions, node.x(2), node.x(3))


def _rotated(node: Node, positions: relax.Expr, cos: relax.Expr, sin: relax.Expr) -> relax.Expr:
    half = expr_shape(cos)[1]
    width = int(node.attr("rotary_embedding_dim", 0)) or None
    x = node.x(0)
    shape = expr_shape(x)
    if len(shape) == 4:
        y = rotate(node, transpose(node, x, _SWAP), positions, cos, sin, bool(node.attr("interleaved", 0)))
        return transpose(node, y, _SWAP)
    heads = int(node.attr("num_heads", 0))
    if not heads:
        node.refuse_unless(width is None and isinstance(shape[2], int), "expected num_heads")
        heads = shape[2] // (2 * half)
    y = rotate(node, split_heads(node, x, heads), positions, cos, sin, bool(node.attr("interleaved", 0)))
    return node.reshape(y, shape)


def rotate(
    node: Node, x: relax.Expr, positions: relax.Expr, cos: relax.Expr, sin: relax.Expr, interleaved: bool
) -> relax.Expr:
    """x [b, s, h, d]: the first channels of every head, as many as the tables [p, r/2] serve, are turned."""
    d, width = expr_shape(x)[3], 2 * expr_shape(cos)[1]
    node.refuse_unless(width <= d, f"expected caches of at most {d // 2} columns, found {width // 2}")
    first = x if width == d else cut(node, x, 3, 0, width)
    turned = node.emit(Rotary.call(first, positions, cos, sin, interleaved=interleaved))
    return turned if width == d else concat(node, [turned, cut(node, x, 3, width, d)], 3)
