"""The loop nest of windows over single channels, built statement by statement.

Before (blocks):   padding of x;   for n, places, c, window: acc;   for n, places, c: stage 1 ...
After:
    parallel for task = (n and all places but the last axis's, piece of the last axis, share of the channels):
        for tiles of `columns` places whose windows lie inside of x along the last axis:   the last two may overlap
            for vectors of channels:                                                       the last two may overlap
                for elements of the window that lie inside along the other axes:
                    for elements along the last axis, unrolled: columns x lanes sums held in registers
                stages
        for the places left, at both ends:
            the same with one place, and the elements of its window that lie inside
    or, where the sizes of the last axis are known and a task has whole rows of it:
        tiles of equal width over all places; the first and the last leave out, place by place, what lies outside
Padding is never read, so it is never written: an element outside is one that the sums leave out. Places that two tiles
share are computed twice, with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from ...blocks import substitute
from ...code.lanes import ceil_div, constant, index, kept, product, simplify, unravel
from ...code.nests import root_block
from ...stages import emit_stages
from .._match import Windows

_UNROLLED = 128  # multiply-adds of a step in which the elements along the last axis are unrolled


def build(windows: Windows, columns: int, lanes: int, tasks: int, shares: int) -> s_tir.SBlockRealize:
    """The whole nest as a root block."""
    with root_block() as builder:
        if constant(product([windows.rows, index(windows.channels)])) == 0:
            T.evaluate(0)
        else:
            _Nest(windows, columns, lanes, tasks, shares).emit()
    return builder.get()


def known_tiles(windows: Windows, columns: int) -> tuple[int, int] | None:
    """(places, number) of equal tiles of at most `columns` over the last axis, where all but the first and the last lie
    inside of x; the last may overlap. None where there are none, or sizes are not known."""
    axis = windows.rank - 1
    places, size = constant(windows.places[axis]), constant(windows.sizes[axis])
    if not places or size is None or columns * windows.kernel[axis] > _UNROLLED:
        return None
    count = -(-places // columns)
    wide = -(-places // count)
    first = wide * windows.strides[axis] - windows.before[axis]
    end = ((count - 1) * wide - 1) * windows.strides[axis] - windows.before[axis]
    end += (windows.kernel[axis] - 1) * windows.dilations[axis]
    return (wide, count) if count <= 2 or (first >= 0 and end < size) else None


def has_whole_rows(windows: Windows, columns: int, tasks: int) -> bool:
    """Whether no row of windows is cut: as many rows as tasks, as far as sizes are known, or one tile is a row."""
    rows = math.prod(constant(size) or 1 for size in (windows.batch, *windows.places[:-1]))
    return rows >= tasks or constant(ceil_div(windows.places[-1], columns)) == 1


class _Nest:
    def __init__(self, windows: Windows, columns: int, lanes: int, tasks: int, shares: int) -> None:
        self.w, self.columns, self.lanes, self.tasks = windows, columns, lanes, tasks
        self.last = windows.rank - 1
        vectors = -(-windows.channels // lanes)
        self.shares = min(shares, vectors)
        self.first, self.vectors = index(0), index(vectors)  # of the task's share of the channels

    def emit(self) -> None:
        w = self.w
        rows, width = product([w.batch, *w.places[:-1]]), w.places[-1]
        pieces = self._pieces(rows, width)
        with T.parallel(simplify(rows * pieces * self.shares)) as task:
            if self.shares > 1:
                count, share = self.vectors, kept(task % self.shares)
                self.first = kept(share * count // self.shares)
                self.vectors = kept((share + 1) * count // self.shares - self.first)
                task = task // self.shares
            row, piece = (task, index(0)) if constant(pieces) == 1 else (task // pieces, task % pieces)
            n, *place = (kept(at) for at in unravel(simplify(row), [w.batch, *w.places[:-1]]))
            tiles = known_tiles(w, self.columns) if constant(pieces) == 1 else None
            if tiles is not None:
                self._known_row(n, place, *tiles)
                return
            self._row(n, place, simplify(piece * width // pieces), simplify((piece + 1) * width // pieces))

    def _pieces(self, rows: ir.Expr, width: ir.Expr) -> ir.Expr:
        """Into how many tasks a row of windows is cut: several where there are few rows for the threads."""
        if has_whole_rows(self.w, self.columns, self.tasks):
            return index(1)
        some = tirx.max(rows, index(1))  # a batch may be empty
        pieces = tirx.min(ceil_div(index(self.tasks), some), ceil_div(width, self.columns))
        return kept(simplify(tirx.max(pieces, index(1))))

    def _known_row(self, n: ir.Expr, place: Sequence[ir.Expr], columns: int, count: int) -> None:
        """All places of the last axis, in `count` tiles of `columns`."""
        w, axis = self.w, self.last
        ranges = [self._inside(a, at) for a, at in enumerate(place)]
        size, last = constant(w.sizes[axis]), constant(w.places[axis]) - columns

        def edge(left: int) -> None:
            def holds(column: int, k: int) -> bool:
                return 0 <= (left + column) * w.strides[axis] + k * w.dilations[axis] - w.before[axis] < size

            self._tile(n, place, ranges, index(left), columns, holds)

        edge(0)
        if count > 2:
            with T.serial(index(count - 2)) as tile:
                self._tile(n, place, ranges, kept((tile + 1) * columns), columns)
        if count > 1:
            edge(last)

    def _row(self, n: ir.Expr, place: Sequence[ir.Expr], start: ir.Expr, end: ir.Expr) -> None:
        """The windows from `start` to `end` along the last axis."""
        w, axis = self.w, self.last
        stride, before = w.strides[axis], w.before[axis]
        reach = (w.kernel[axis] - 1) * w.dilations[axis]
        inner = tirx.min(tirx.max(start, index(-(-before // stride))), end)
        outer = tirx.min(tirx.floordiv(w.sizes[axis] + (before - 1 - reach), stride) + 1, end)
        inner = kept(simplify(inner))
        count = kept(simplify(tirx.max(outer - inner, index(0))))
        ranges = [self._inside(a, at) for a, at in enumerate(place)]
        whole = tirx.if_then_else(count >= self.columns, ceil_div(count, self.columns), index(0))
        with T.serial(whole) as tile:
            left = inner + tirx.min(tile * self.columns, count - self.columns)
            self._tile(n, place, ranges, kept(left), self.columns)
        covered = kept(tirx.if_then_else(count >= self.columns, count, index(0)))
        ends = end - start - covered
        with T.serial(ends) as i:
            at = kept(tirx.if_then_else(i < inner - start, start + i, start + i + covered))
            self._tile(n, place, [*ranges, self._inside(axis, at)], at, 1)

    def _inside(self, axis: int, at: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        """(first, end) of the elements along `axis`, of the window number `at`, that lie inside of x."""
        w = self.w
        kernel, dilation = w.kernel[axis], w.dilations[axis]
        if w.is_inside(axis):
            return index(0), index(kernel)
        start = at * w.strides[axis] - w.before[axis]
        first = tirx.max(tirx.floordiv(index(dilation - 1) - start, dilation), index(0))
        end = tirx.min(tirx.floordiv(w.sizes[axis] - start + (dilation - 1), dilation), index(kernel))
        first = kept(tirx.min(first, index(kernel)))
        return first, kept(tirx.max(end, first))

    def _tile(
        self,
        n: ir.Expr,
        place: Sequence[ir.Expr],
        ranges: list[tuple[ir.Expr, ir.Expr]],
        left: ir.Expr,
        columns: int,
        holds: Callable[[int, int], bool] = lambda column, k: True,
    ) -> None:
        """`columns` windows from `left` on; without a range for the last axis its elements lie inside where `holds`."""
        w, lanes = self.w, index(self.lanes)
        unrolled = len(ranges) == self.last and columns * w.kernel[self.last] <= _UNROLLED
        with T.serial(self.vectors) as vector:
            channel = kept(tirx.min(simplify(self.first + vector) * lanes, index(w.channels - self.lanes)))
            acc = [T.alloc_buffer((self.lanes,), str(w.acc.dtype)) for _ in range(columns)]
            for sums in acc:
                with T.vectorized(lanes) as lane:
                    T.buffer_store(sums, w.block.node.init.value, [lane])
            self._window(acc, n, place, ranges, left, channel, holds if unrolled else None)
            self._leave(acc, n, place, left, channel)

    def _window(
        self,
        acc: Sequence[ir.Var],
        n: ir.Expr,
        place: Sequence[ir.Expr],
        ranges: list[tuple[ir.Expr, ir.Expr]],
        left: ir.Expr,
        channel: ir.Expr,
        holds: Callable[[int, int], bool] | None,
    ) -> None:
        """`holds`: of elements along the last axis that are unrolled; None: they are a loop."""
        w = self.w

        def along(axis: int, at: list[ir.Expr]) -> None:
            if axis == len(ranges):
                for number in range(w.kernel[axis]) if holds is not None else ():
                    add([*at, index(number)], [c for c in range(len(acc)) if holds(c, number)])
                if holds is None:
                    with T.serial(index(w.kernel[axis])) as k:
                        add([*at, k])
                return
            first, end = ranges[axis]
            with T.serial(end - first) as k:
                here = [*at, first + k]
                add(here) if axis == self.last else along(axis + 1, here)

        def add(ks: list[ir.Expr], columns: Sequence[int] = range(len(acc))) -> None:
            for column in columns:
                sums = acc[column]
                with T.vectorized(index(self.lanes)) as lane:
                    T.buffer_store(sums, self._added(sums, lane, n, [*place, left + column], channel, ks), [lane])

        along(0, [])

    def _added(
        self, sums: ir.Var, lane: ir.Expr, n: ir.Expr, place: list[ir.Expr], channel: ir.Expr, ks: list[ir.Expr]
    ) -> ir.Expr:
        """What the main block makes of the sums and one element of the window."""
        w = self.w
        at = [
            o * s + k * d - b if b else o * s + k * d
            for o, k, s, d, b in zip(place, ks, w.strides, w.dilations, w.before)
        ]
        element = w.x[(n, *at, channel + lane)]
        values = dict(zip(w.block.vars, [n, *place, channel + lane, *ks, index(0)]))
        return substitute(w.block.store.value, values, {w.acc: sums[lane], w.source: element})

    def _leave(
        self, acc: Sequence[ir.Var], n: ir.Expr, place: Sequence[ir.Expr], left: ir.Expr, channel: ir.Expr
    ) -> None:
        """The sums through the stages; by way of a scratch tile where there are any: their code is there once."""
        w = self.w

        def leave(sums: ir.Expr, column: ir.Expr) -> None:
            emit_stages(
                w.stages,
                {w.acc: sums},
                w.outputs,
                lambda lane: (n, *place, left + column, channel + lane),
                self.lanes,
            )

        if not w.stages or len(acc) == 1:
            for column, sums in enumerate(acc):
                leave(lambda lane, sums=sums: sums[lane], index(column))
            return
        scratch = T.alloc_buffer((len(acc), self.lanes), str(w.acc.dtype), align=64)
        for column, sums in enumerate(acc):
            with T.vectorized(index(self.lanes)) as lane:
                T.buffer_store(scratch, sums[lane], [column, lane])
        with T.serial(index(len(acc))) as column:
            leave(lambda lane: scratch[column, lane], column)
