"""NonMaxSuppression: boxes chosen one by one, each removing those that overlap it; how many depends on the data."""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..meaning.broadcast import same_sizes
from ._node import Node
from ._registry import converter


@converter("NonMaxSuppression", since=10)
def non_max_suppression(node: Node) -> relax.Expr:
    """[n, 3] of (batch, class, box): by batch, by class, best score first."""
    centre = bool(node.attr("center_point_box", 0))
    node.refuse_unless(node.dtype(0) == node.dtype(1) == "float32", "expected float32 boxes and scores")
    if not node.has(2):
        return np.zeros((0, 3), np.int64)
    node.refuse_unless(node.rank(1) == 3, f"expected scores of rank 3, found {node.rank(1)}")
    batch, _, count = node.shape(1)
    boxes = same_sizes(node, node.x(0), [batch, count, 4], "boxes")
    limit = node.x(2)
    overlap = node.x(3) if node.has(3) else relax.const(np.zeros(1, np.float32))
    least = node.x(4) if node.has(4) else relax.const(np.full(1, -np.inf, np.float32))
    limit, overlap, least = (
        node.emit(relax.op.reshape(node.emit(relax.op.astype(v, d)), [1]))
        for v, d in ((limit, "int64"), (overlap, "float32"), (least, "float32"))
    )

    def choose(boxes: te.Tensor, scores: te.Tensor, *numbers: te.Tensor) -> list[te.Tensor]:
        batch, classes, count = scores.shape
        return te.extern(
            [(batch, classes, count), (batch, classes), (batch, classes, count)],
            [boxes, scores, *numbers],
            lambda ins, outs: _choose(ins, outs, centre),
            dtype=["int64", "int64", "int64"],
            name="choose",
        )

    chosen = node.te(choose, boxes, node.x(1), limit, overlap, least)
    picked, counts = (node.emit(relax.TupleGetItem(chosen, i)) for i in (0, 1))
    total = node.emit(relax.op.reshape(node.emit(relax.op.sum(counts)), [1]))
    length = node.graph.builder.emit(relax.op.tensor_to_shape(total))
    size = tirx.Var(node.graph.dimension_name("selected"), "int64")
    node.graph.builder.match_cast(length, relax.ShapeType([size]))

    def gather(picked: te.Tensor, counts: te.Tensor, size: tirx.Var) -> te.Tensor:
        return te.extern(
            [(size, 3)], [picked, counts], lambda ins, outs: _gather(ins, outs[0]), dtype="int64", name="gather"
        )

    return node.te(gather, picked, counts, size)


def _choose(ins: list, outs: list, centre: bool) -> object:
    """Per batch and class: take the best score that is left, drop what overlaps it, again."""
    boxes, scores, limit, overlap, least = (T.buffer_proxy(b) for b in ins)
    picked, counts, state = (T.buffer_proxy(b) for b in outs)
    batch, classes, count = outs[0].shape

    def corners(b, i):
        """(low, high) of both axes and the area."""
        if centre:
            x, y, w, h = (boxes[b, i, j] for j in range(4))
            half = tirx.const(0.5, "float32")
            sides = [(x - w * half, x + w * half), (y - h * half, y + h * half)]
        else:
            sides = [
                (tirx.min(boxes[b, i, j], boxes[b, i, j + 2]), tirx.max(boxes[b, i, j], boxes[b, i, j + 2]))
                for j in (0, 1)
            ]
        return sides, (sides[0][1] - sides[0][0]) * (sides[1][1] - sides[1][0])

    def overlaps(b, i, j):
        (first, area), (second, other) = corners(b, i), corners(b, j)
        zero = tirx.const(0, "float32")
        common = tirx.const(1, "float32")
        for (low, high), (low2, high2) in zip(first, second):
            common = common * tirx.max(tirx.min(high, high2) - tirx.max(low, low2), zero)
        union = area + other - common
        # Boxes without area overlap nothing.
        real = tirx.all(area > zero, other > zero, union > zero)
        return tirx.all(real, common > overlap[0] * union)

    with IRBuilder() as ib:
        with T.parallel(0, batch * classes) as bc:
            b, c = tirx.floordiv(bc, classes), tirx.floormod(bc, classes)
            best = T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local"))
            counts[b, c] = tirx.const(0, "int64")
            with T.serial(0, count) as i:
                picked[b, c, i] = tirx.const(0, "int64")
                state[b, c, i] = tirx.Select(scores[b, c, i] > least[0], tirx.const(1, "int64"), tirx.const(0, "int64"))
            with T.serial(0, tirx.max(tirx.min(limit[0], count), tirx.const(0, "int64"))):
                best[0] = tirx.const(-1, "int64")
                with T.serial(0, count) as i:
                    better = tirx.if_then_else(
                        best[0] < 0,
                        tirx.const(True, "bool"),
                        scores[b, c, i] > scores[b, c, tirx.max(best[0], tirx.const(0, "int64"))],
                    )
                    with T.If(tirx.all(state[b, c, i] == 1, better)):
                        with T.Then():
                            best[0] = i
                with T.If(best[0] >= 0):
                    with T.Then():
                        picked[b, c, counts[b, c]] = best[0]
                        counts[b, c] = counts[b, c] + 1
                        state[b, c, best[0]] = tirx.const(0, "int64")
                        with T.serial(0, count) as i:
                            with T.If(state[b, c, i] == 1):
                                with T.Then():
                                    with T.If(overlaps(b, best[0], i)):
                                        with T.Then():
                                            state[b, c, i] = tirx.const(0, "int64")
        return ib.get()


def _gather(ins: list, out: object) -> object:
    """The picked boxes of all batches and classes behind each other."""
    picked, counts = (T.buffer_proxy(b) for b in ins)
    batch, classes = ins[1].shape
    rows = T.buffer_proxy(out)
    with IRBuilder() as ib:
        with T.parallel(0, 1):
            end = T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local"))
            end[0] = tirx.const(0, "int64")
            with T.serial(0, batch) as b:
                with T.serial(0, classes) as c:
                    with T.serial(0, counts[b, c]) as i:
                        rows[end[0], 0] = b
                        rows[end[0], 1] = c
                        rows[end[0], 2] = picked[b, c, i]
                        end[0] = end[0] + 1
        return ib.get()
