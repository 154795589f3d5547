"""Non-maximum suppression: boxes in the order of their scores, without those that overlap one before them.

Candidates come out of a heap, so that scores are sorted as far as boxes are asked for. They come in blocks of `_LANES`,
which are compared with one chosen box at a time, all at once; then those that are left with one another. n candidates
and m chosen boxes cost n * m / _LANES steps of vectors.
"""

from __future__ import annotations

from tvm import ir, relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...heaps import Heap, comes_before, in_order
from .builder import Builder
from .sizes import Dim

_LANES = 32
_NUMBERS = 5  # of a box: low and high of both axes, area


def chosen_boxes(
    b: Builder,
    boxes: relax.Expr,
    scores: relax.Expr,
    limit: relax.Expr,
    overlap: relax.Expr,
    least: relax.Expr | None,
    size: Dim,
) -> relax.Expr:
    """int64 [size, 3] of (image, class, box), by image, by class, best score first, of equal ones the first box.

    Of each image and class those boxes that no chosen one before them overlaps.
    boxes: float32 [images, n, 4], two opposite corners each, (y, x, y, x) or (x, y, x, y)
    scores: float32 [images, classes, n]; those that are not above `least` do not count. NaN is the largest
    limit: int64 [1], the most boxes of a class
    overlap: float32 [1], from 0 to 1, the largest share of common area in the area of both that two boxes may have
    least: float32 [1]; without it every box counts
    size: a dimension that the caller made for this
    """
    numbers = [limit, overlap] if least is None else [limit, overlap, least]
    found = b.te(_choose, boxes, scores, *numbers, name=b.op.lower())
    picked, counts = (b.emit(relax.TupleGetItem(found, i)) for i in (0, 1))
    total = b.emit(relax.op.reshape(b.emit(relax.op.sum(counts)), [1]))
    b.block.match_cast(b.block.emit(relax.op.tensor_to_shape(total)), relax.ShapeType([size]))
    return b.te(_listed, picked, counts, size)


def _listed(picked: te.Tensor, counts: te.Tensor, size: Dim) -> te.Tensor:
    return te.extern([(size, 3)], [picked, counts], _rows, dtype="int64", name="listed")


def _rows(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
    picked, counts, rows = (T.buffer_proxy(b) for b in (*ins, *outs))
    images, classes = ins[1].shape
    with IRBuilder() as ib:
        with T.parallel(0, 1):
            end = T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local"))
            end[0] = _int64(0)
            with T.serial(0, images) as image:
                with T.serial(0, classes) as label:
                    with T.serial(0, counts[image, label]) as i:
                        for j, value in enumerate((image, label, picked[image, label, i])):
                            rows[end[0], j] = value
                        end[0] = end[0] + 1
        return ib.get()


def _choose(boxes: te.Tensor, scores: te.Tensor, *numbers: te.Tensor) -> list[te.Tensor]:
    """Places of the chosen boxes [images, classes, n] and how many they are [images, classes]."""
    images, classes, n = scores.shape
    made: list[te.Tensor] = te.extern(
        [(images, classes, n), (images, classes), (images, classes, n), (images, classes, n, _NUMBERS)],
        [boxes, scores, *numbers],
        _chosen_by_class,
        dtype=["int64", "int64", "int64", "float32"],
        name="choose",
    )
    return made


def _chosen_by_class(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
    boxes, scores, limit, overlap, *least = (T.buffer_proxy(b) for b in ins)
    picked, counts, order, corners = (T.buffer_proxy(b) for b in outs)
    images, classes, n = outs[0].shape
    before = comes_before("float32", descending=True)

    with IRBuilder() as ib:
        with T.parallel(0, images * classes) as each:
            image, label = tirx.floordiv(each, classes), tirx.floormod(each, classes)
            left = T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local"))
            count = T.buffer_proxy(T.alloc_buffer((1,), "int64", scope="local"))

            def better(i: ir.Expr, j: ir.Expr) -> ir.Expr:
                return in_order(scores[image, label, i], scores[image, label, j], i < j, before)

            candidates = Heap(order, (image, label), better)
            left[0] = _int64(0)
            with T.serial(0, n) as i:
                with T.If(scores[image, label, i] > least[0][0] if least else tirx.const(True, "bool")), T.Then():
                    candidates[left[0]] = i
                    left[0] = left[0] + 1
            candidates.build(left[0])

            block = _Block(overlap[0])
            count[0] = _int64(0)
            with T.While(tirx.And(left[0] > 0, count[0] < limit[0])):
                with T.serial(0, _LANES) as lane:
                    block.clear(lane)
                    with T.If(left[0] > 0), T.Then():
                        candidates.pop(left[0])
                        left[0] = left[0] - 1
                        block.put(lane, candidates[left[0]], [boxes[image, candidates[left[0]], j] for j in range(4)])
                with T.serial(0, count[0]) as i:
                    block.strike([corners[image, label, i, j] for j in range(_NUMBERS)])
                with T.serial(0, _LANES) as lane:
                    with T.If(tirx.And(block.stands(lane), count[0] < limit[0])), T.Then():
                        picked[image, label, count[0]] = block.box[lane]
                        for j in range(_NUMBERS):
                            corners[image, label, count[0], j] = block.corners[j][lane]
                        count[0] = count[0] + 1
                        block.strike([block.corners[j][lane] for j in range(_NUMBERS)])
            counts[image, label] = count[0]
        return ib.get()


class _Block:
    """Candidates in lanes: their boxes and whether one that comes before them overlaps them."""

    def __init__(self, overlap: ir.Expr) -> None:
        self._overlap = overlap
        self.corners = [_local("float32") for _ in range(_NUMBERS)]
        self.box, self._struck = _local("int64"), _local("int32")

    def clear(self, lane: ir.Expr) -> None:
        self._struck[lane] = tirx.const(1, "int32")
        for numbers in self.corners:
            numbers[lane] = tirx.const(0, "float32")

    def put(self, lane: ir.Expr, box: ir.Expr, ends: list[ir.Expr]) -> None:
        """Box number `box` with two opposite corners."""
        self._struck[lane] = tirx.const(0, "int32")
        self.box[lane] = box
        low0, high0, low1, high1, area = self.corners
        low0[lane], high0[lane] = tirx.min(ends[0], ends[2]), tirx.max(ends[0], ends[2])
        low1[lane], high1[lane] = tirx.min(ends[1], ends[3]), tirx.max(ends[1], ends[3])
        area[lane] = (high0[lane] - low0[lane]) * (high1[lane] - low1[lane])

    def stands(self, lane: ir.Expr) -> ir.Expr:
        return self._struck[lane] == 0

    def strike(self, box: list[ir.Expr]) -> None:
        """Strike every lane that the box (as `corners`) overlaps. No area gives 0 / 0, which is not above anything."""
        low0, high0, low1, high1, area = box
        zero = tirx.const(0, "float32")
        with T.serial(0, _LANES) as lane:  # LLVM makes vectors of it; a GPU has none of so many lanes
            lows0, highs0, lows1, highs1, areas = (numbers[lane] for numbers in self.corners)
            common = tirx.max(tirx.min(high0, highs0) - tirx.max(low0, lows0), zero)
            common = common * tirx.max(tirx.min(high1, highs1) - tirx.max(low1, lows1), zero)
            struck = common / (area + areas - common) > self._overlap
            self._struck[lane] = tirx.Select(struck, tirx.const(1, "int32"), self._struck[lane])


def _local(dtype: str) -> T.buffer_proxy:
    return T.buffer_proxy(T.alloc_buffer((_LANES,), dtype, scope="local"))


def _int64(value: int) -> ir.Expr:
    return tirx.const(value, "int64")
