"""Det: by the factors of an elimination with pivots."""

from __future__ import annotations

from tvm import relax

from ..meaning import linear_algebra
from ..meaning.pointwise import narrowed, widened
from ._node import Node
from ._registry import converter


@converter("Det")
def determinant(node: Node) -> relax.Expr:
    rows, columns = node.shape(0)[-2:]
    square = node.sizes.is_equal(rows, columns)
    node.refuse_unless(square, f"expected square matrices, found {rows} x {columns}")
    packed, pivots, _ = linear_algebra.lu(node, widened(node, node.x(0)))
    return narrowed(linear_algebra.determinant(node, packed, pivots)[0], node.dtype(0))
