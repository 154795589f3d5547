"""Det, and onnxruntime's Inverse."""

from __future__ import annotations

from tvm import relax

from ..meaning import linear_algebra
from ..meaning.pointwise import widened
from ._node import Node
from ._registry import converter


def _matrices(node: Node) -> relax.Expr:
    """Input 0 as matrices [..., n, n], in float32 where the type is narrower."""
    node.refuse_unless(node.rank(0) >= 2, f"expected matrices, found {node.rank(0)} dimensions")
    rows, columns = node.shape(0)[-2:]
    square = node.sizes.is_equal(rows, columns)
    node.refuse_unless(square, f"expected square matrices, found {rows} x {columns}")
    return widened(node, node.x(0))


@converter("Det")
def determinant(node: Node) -> relax.Expr:
    """By the factors of an elimination with pivots."""
    packed, pivots, _ = linear_algebra.lu(node, _matrices(node))
    return node.cast(linear_algebra.determinant(node, packed, pivots)[0], node.dtype(0))


@converter("Inverse", domain="com.microsoft")
def inverse(node: Node) -> relax.Expr:
    return node.cast(linear_algebra.inverse(node, _matrices(node)), node.dtype(0))
