"""Normalisations that onnxruntime fuses: with a residual, of embeddings, and by the root mean square."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ...relay_ops.layer_norm import LayerNorm
from ...relay_ops.rms_norm import RMSNorm
from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.norms import rms_norm, scaled
from ..meaning.pointwise import HALVES
from ._node import Node
from ._registry import converter
from ._spell import add, multiply, number

_MS = "com.microsoft"


@converter("SimplifiedLayerNormalization")
@converter("SimplifiedLayerNormalization", domain=_MS)
def simplified(node: Node) -> tuple[relax.Expr | None, ...]:
    """x / sqrt(mean(x^2) + eps) * scale over the axes from `axis` on; exporters put it in the default domain too.

    The second output, where one is asked for, is 1 / sqrt(...) in float32.
    """
    x, rank, eps = node.x(0), node.rank(0), float(node.attr("epsilon", 1e-5))
    axis = node.axis(node.attr("axis", -1), rank)
    _check(node, x)
    if not any(node.outputs[1:]):
        return (node.cast(rms_norm(node, x, axis, node.x(1), eps), node.dtype(1)), None)
    wide = node.cast(x, "float32")
    square = node.emit(relax.op.mean(multiply(node, wide, wide), list(range(axis, rank)), keepdims=True))
    inverse = node.emit(relax.op.rsqrt(add(node, square, number(eps, "float32"))))
    normal = scaled(node, multiply(node, wide, inverse), node.x(1), None)
    return (node.cast(normal, node.dtype(1)), inverse)


@converter("SkipSimplifiedLayerNormalization", domain=_MS)
def skip_simplified(node: Node) -> tuple[relax.Expr | None, ...]:
    _no_statistics(node)
    total = _sum(node, 3)
    return (_rms(node, total, node.x(2), float(node.attr("epsilon", 1e-12))), None, None, total)


@converter("SkipLayerNormalization", domain=_MS)
def skip_layer_norm(node: Node) -> tuple[relax.Expr | None, ...]:
    _no_statistics(node)
    total = _sum(node, 4)
    beta = node.x(3) if node.has(3) else _zeros(node, node.x(2))
    return (_layer_norm(node, total, node.x(2), beta, float(node.attr("epsilon", 1e-12))), None, None, total)


@converter("EmbedLayerNormalization", domain=_MS)
def embed_layer_norm(node: Node) -> tuple[relax.Expr | None, ...]:
    return embedded(node, [node.x(i) if node.has(i) else None for i in range(2, 7)], mask=7, order=8)


def embedded(
    node: Node, tables: Sequence[relax.Expr | None], *, mask: int, order: int | None = None
) -> tuple[relax.Expr | None, ...]:
    """Sum of word, position and segment embeddings, normalised; and the number of tokens that the mask keeps.

    tables: of words, positions and segments, then scale and shift of the norm
    mask, order: which inputs say what is kept, and the positions, where these are not 0, 1, 2, ...
    """
    ids = node.x(0)
    b, s = expr_shape(ids)
    words, places, segments, gamma, beta = tables
    total = _rows(node, words, ids)
    if order is not None and node.has(order):
        positions = _rows(node, places, node.x(order))
    else:
        counted = node.emit(relax.op.arange(0, s, 1, "int64"))
        positions = node.emit(relax.op.reshape(_rows(node, places, counted), [1, s, expr_shape(places)[1]]))
    total = add(node, total, positions)
    if segments is not None:
        node.refuse_unless(node.has(1), "expected segment_ids with segment_embedding")
        total = add(node, total, _rows(node, segments, node.x(1)))
    y = _layer_norm(node, total, gamma, beta, float(node.attr("epsilon", 1e-12)))
    if len(node.outputs) < 2 or not node.outputs[1]:
        return (y, None, total)
    if node.has(mask):  # only a 1 keeps a token, not every number but 0
        ones = node.emit(relax.op.equal(node.x(mask), number(1, node.dtype(mask))))
        kept = node.emit(relax.op.sum(node.cast(ones, "int32"), 1))
    else:
        kept = node.emit(relax.op.full(relax.ShapeExpr([b]), number(0, "int32"), "int32"))
    return (y, kept, total)


def _rows(node: Node, table: relax.Expr, ids: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.take(table, ids, axis=0, mode="clip"))


def _sum(node: Node, bias: int) -> relax.Expr:
    """input + skip + bias; a skip of fewer dimensions is repeated."""
    total = add(node, node.x(0), node.x(1))
    return add(node, total, node.x(bias)) if node.has(bias) else total


def _no_statistics(node: Node) -> None:
    asked = [name for name in node.outputs[1:3] if name]
    node.refuse_unless(not asked, f"expected no mean and no deviation as outputs, found {', '.join(asked)}")


def _zeros(node: Node, like: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.zeros(relax.ShapeExpr(expr_shape(like)), expr_dtype(like)))


def _rms(node: Node, x: relax.Expr, weight: relax.Expr, eps: float) -> relax.Expr:
    _check(node, x)
    return node.emit(RMSNorm.call(x, node.cast(weight, "float32"), eps=eps))


def _layer_norm(node: Node, x: relax.Expr, weight: relax.Expr, bias: relax.Expr, eps: float) -> relax.Expr:
    _check(node, x)
    return node.emit(LayerNorm.call(x, node.cast(weight, "float32"), node.cast(bias, "float32"), eps=eps))


def _check(node: Node, x: relax.Expr) -> None:
    dtype = expr_dtype(x)
    node.refuse_unless(dtype == "float32" or dtype in HALVES, f"expected floats of 16 or 32 bits, found {dtype}")
