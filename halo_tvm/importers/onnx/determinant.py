"""Det: elimination with pivots, one step per row; the number of rows is known."""

from __future__ import annotations

from tvm import relax, te, tirx

from ..meaning.builder import expr_shape
from ..meaning.pointwise import Scalar, const_like, narrowed, pointwise, widened
from ..meaning.reduction import arg_index
from ._node import Node
from ._registry import converter

_LARGEST = 32  # rows: every row is a step of the graph


@converter("Det")
def determinant(node: Node) -> relax.Expr:
    rows, columns = node.shape(0)[-2:]
    node.refuse_unless(
        isinstance(rows, int) and rows == columns and 0 < rows <= _LARGEST,
        f"expected square matrices of 1 to {_LARGEST} rows, found {rows} x {columns}",
    )
    rest = widened(node, node.x(0))
    product = None
    for left in range(rows, 0, -1):
        pivot = _pivot_row(node, rest)
        factor = node.te(_signed_pivot, rest, pivot, name="onnx_det_pivot")
        product = factor if product is None else pointwise(node, lambda a, b: a * b, product, factor, name="product")
        if left > 1:
            rest = node.te(_eliminated, rest, pivot, name="onnx_det_step")
    return narrowed(product, node.dtype(0))


def _pivot_row(node: Node, x: relax.Expr) -> relax.Expr:
    """Row of the largest element of the first column: [..., 1]."""
    rank = len(expr_shape(x))

    def column(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape[:-1], lambda *i: tirx.abs(x(*i, 0)), name="column")

    return arg_index(node, node.te(column, x, name="onnx_det_column"), rank - 2, largest=True)


def _signed_pivot(x: te.Tensor, pivot: te.Tensor) -> te.Tensor:
    """The pivot, negative when its row has to move."""

    def element(*i: Scalar) -> Scalar:
        row = pivot(*i, 0)
        value = x(*i, row, 0)
        return tirx.Select(row == tirx.const(0, "int64"), value, -value)

    return te.compute(x.shape[:-2], element, name="pivot")


def _eliminated(x: te.Tensor, pivot: te.Tensor) -> te.Tensor:
    """What is left of [..., n, n] without the pivot's row and the first column: [..., n - 1, n - 1]."""
    *batch, rows, columns = x.shape

    def element(*index: Scalar) -> Scalar:
        *i, r, c = index
        top = pivot(*i, 0)
        # The first row takes the place of the pivot's.
        row = tirx.Select(r.astype("int64") + 1 == top, tirx.const(0, "int64"), r.astype("int64") + 1)
        head = x(*i, top, 0)
        zero = head == const_like(0, head)
        ratio = x(*i, row, 0) / tirx.Select(zero, const_like(1, head), head)
        return x(*i, row, c + 1) - ratio * x(*i, top, c + 1)

    return te.compute([*batch, rows - 1, columns - 1], element, name="eliminated")
