"""Elements by value: NonZero, Compress, TopK."""

from __future__ import annotations

from tvm import relax, te, tirx

from ..meaning.broadcast import at_least
from ..meaning.builder import expr_shape
from ..meaning.selection import first_in_order, nonzero_places
from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter


@converter("NonZero")
def nonzero(node: Node) -> relax.Expr:
    node.refuse_unless(node.rank(0) > 0, "expected a rank of 1 or more, found a single number")
    return nonzero_places(node, node.x(0), node.fresh_dim())


@converter("Compress")
def compress(node: Node) -> relax.Expr:
    """Slices (or elements) whose condition holds; the longer one of condition and axis is cut."""
    x, axis = node.x(0), node.attr("axis", None)
    if axis is None:
        x, axis = node.emit(relax.op.reshape(x, [node.sizes.product(node.shape(0))])), 0
    axis = node.axis(axis, len(expr_shape(x)))
    node.refuse_unless(node.rank(1) == 1, f"expected a condition of rank 1, found {node.rank(1)}")
    condition, length, size = node.x(1), node.shape(1)[0], expr_shape(x)[axis]
    if node.sizes.decided(prim(length) <= prim(size)) is not True:
        condition = node.te(_cut, condition, [size], name="onnx_cut")
    found = nonzero_places(node, condition, node.fresh_dim())
    flat = node.emit(relax.op.reshape(found, [expr_shape(found)[1]]))
    return relax.op.take(x, flat, axis, mode="clip")


def _cut(condition: te.Tensor, size: list) -> te.Tensor:
    return te.compute([tirx.min(condition.shape[0], size[0])], lambda i: condition[i], name="cut")


@converter("TopK")
def top_k(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """The k largest or smallest, sorted; of equal ones the first comes first."""
    rank = node.rank(0)
    axis = node.axis(node.attr("axis", -1), rank)
    largest = bool(node.attr("largest", 1))
    k: Dim = int(node.attr("k")) if node.opset < 10 else node.runtime_dims(1)[0]
    x = at_least(node, node.x(0), [k if i == axis else None for i in range(rank)], "input, with k elements to find,")
    return first_in_order(node, x, k, axis, largest=largest)
