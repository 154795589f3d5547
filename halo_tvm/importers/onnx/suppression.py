"""NonMaxSuppression: boxes chosen one by one, each removing those that overlap it; how many depends on the data."""

from __future__ import annotations

import numpy as np
from tvm import ir, relax, te, tirx

from ...relay_ops.operator import chosen
from ..meaning.broadcast import same_sizes
from ..meaning.suppression import chosen_boxes
from ._node import Node
from ._registry import converter


@converter("NonMaxSuppression", since=10)
def non_max_suppression(node: Node) -> relax.Expr:
    """[n, 3] of (batch, class, box): by batch, by class, best score first."""
    node.refuse_unless(node.dtype(0) == node.dtype(1) == "float32", "expected float32 boxes and scores")
    if not node.has(2):
        return np.zeros((0, 3), np.int64)
    node.refuse_unless(node.rank(1) == 3, f"expected scores of rank 3, found {node.rank(1)}")
    batch, _, count = node.shape(1)
    boxes = same_sizes(node, node.x(0), [batch, count, 4], "boxes")
    if node.attr("center_point_box", 0):
        boxes = node.te(_corners, boxes)
    limit = node.x(2)
    overlap = node.x(3) if node.has(3) else relax.const(np.zeros(1, np.float32))
    least = node.x(4) if node.has(4) else relax.const(np.full(1, -np.inf, np.float32))
    limit, overlap, least = (
        node.emit(relax.op.reshape(node.emit(relax.op.astype(v, d)), [1]))
        for v, d in ((limit, "int64"), (overlap, "float32"), (least, "float32"))
    )
    return chosen_boxes(node, boxes, node.x(1), limit, overlap, least, node.fresh_dim())


def _corners(boxes: te.Tensor) -> te.Tensor:
    """Two corners (x, y, x, y) of boxes (x, y, width, height); a size below 0 counts as none."""

    def corner(b: tirx.Var, i: tirx.Var, j: tirx.Var) -> ir.Expr:
        half = tirx.max(boxes[b, i, 2 + j % 2], tirx.const(0, "float32")) * tirx.const(0.5, "float32")
        centre = boxes[b, i, j % 2]
        return chosen(j < 2, centre - half, centre + half)

    return te.compute(boxes.shape, corner, name="corners")
