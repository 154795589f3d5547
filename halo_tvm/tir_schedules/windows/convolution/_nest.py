"""The loop nest of a convolution, built statement by statement.

Before (blocks):   padding of x;   for n, places, m, window, c: acc;   for n, places, m: stage 1 ...
After:
    a copy of x, widened or rounded, and padded         only for 16-bit types, and padding of a few channels or bytes
    parallel for task = (block of windows, group, panel of nr columns):
        for pieces of the window whose weights leave half of L2 free:
            for tiles of mr windows:
                for elements of the window (or runs of them that are one run of memory):
                    an address for each of the mr windows: in x, or of zeros where the element lies outside
                    for channels: mr x nr sums held in registers
        for each window: all stages, vector by vector
Windows are numbered over the batch and all places, so that small images fill tiles too. The last tile of a block is as
tall as the others: rows beyond the last window repeat it, and are not stored. So the code of a tile is there once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tvm import DataType, ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from ...code import pair_dot
from ...code.lanes import ceil_div, constant, index, kept, run, simplify, unravel
from ...code.nests import root_block, run_at, vectors
from ...products.gemm.amx import InTiles
from ...products.gemm.arithmetic import Tile
from ...products.gemm.bf16 import TEXT as PAIRS_TEXT
from ...products.gemm.narrow_pairs import NarrowPairs
from ...products.row_tiling import RowTiling
from .._places import RunningPlace
from .._zeros import address_or_zeros, zeros_text
from ._along_rows import emit_along_rows
from ._copy import Padded, marks_of, padded_copy, pairs_copy, rounded_copy
from ._problem import Problem
from ._store import store
from ._tiles import emit_in_tiles

_SKIPPED_FROM = 32  # vector products of a window at one element: fewer cost no more than to find out that all are zero


def build(
    problem: Problem, rows: RowTiling, unroll: int, lanes: int, l2_bytes: int, along_rows: int
) -> s_tir.SBlockRealize:
    """The whole nest as a root block; `along_rows`: the most windows of a tile along a row, 0: they lie anywhere."""
    with root_block() as builder:
        if constant(problem.windows.rows) == 0:
            T.evaluate(0)
        elif isinstance(problem.arithmetic, InTiles):
            emit_in_tiles(problem, _source(problem, lanes), rows, lanes)
        elif along_rows:
            text = PAIRS_TEXT if problem.arithmetic.words else zeros_text(problem.abreast * problem.inner)
            with T.attr(0, pair_dot.PRAGMA, text):
                emit_along_rows(problem, _source(problem, lanes), min(rows.mr, along_rows), rows.block_rows, lanes)
        else:
            with T.attr(0, pair_dot.PRAGMA, PAIRS_TEXT if problem.arithmetic.words else zeros_text(problem.run)):
                _Nest(problem, _source(problem, lanes), rows, unroll, lanes, l2_bytes).emit()
    return builder.get()


def _source(problem: Problem, lanes: int) -> Padded:
    if not problem.copies:
        return Padded.of(problem.windows)
    if problem.arithmetic.takes_apart:
        return pairs_copy(problem.windows, problem.channels, lanes)
    if problem.arithmetic.words:
        return rounded_copy(problem.windows, lanes)
    wide = lanes * 4 // DataType(problem.dtype).itemsize
    return padded_copy(problem.windows, problem.dtype, problem.channels, wide)


@dataclass(frozen=True)
class _WindowTile(Tile):
    """A tile whose rows are runs of memory, one for each window, and whose weights begin at step `first`."""

    runs: tuple[ir.Var, ...] = ()
    marks_of_runs: tuple[ir.Var, ...] = ()
    first: ir.Expr | int = 0

    def of_x(self, row: int, at: ir.Expr, width: int = 1) -> ir.Expr:
        return self.runs[row][run(at, width)]

    def of_words(self, row: int, k: ir.Expr, group: int) -> ir.Expr:
        return self.runs[row][k]

    def of_pairs(self, row: int, half: int, k: ir.Expr) -> ir.Expr:
        return self.runs[row][half, k]

    def of_marks(self, row: int, k: ir.Expr, width: int) -> ir.Expr:
        return self.marks_of_runs[row][run(k, width)]

    def of_weight(self, k: ir.Expr, *at: ir.Expr) -> ir.Expr:
        return self.weight[(self.chunk, self.panel, self.first + k, *at)]


class _Nest:
    def __init__(self, problem: Problem, x: Padded, rows: RowTiling, unroll: int, lanes: int, l2_bytes: int) -> None:
        self.p, self.w, self.x, self.rows, self.lanes = problem, problem.windows, x, rows, lanes
        self.group = problem.arithmetic.group
        self.steps = problem.run // self.group  # of each element that is walked to
        self.unroll = max(steps for steps in range(1, unroll + 1) if self.steps % steps == 0)
        room = l2_bytes // 2 // (problem.run * problem.nr * DataType(str(problem.weight.dtype)).itemsize)
        self.taps = math.prod(problem.taps)
        self.pieces = -(-self.taps // max(1, room))
        self.vectors = problem.nr // lanes
        self.marks: ir.Var | None = None  # of the panel of a task
        self.begin: ir.Var | None = None  # what the sums of a task begin with where that is not 0
        self.marks_of_x: ir.Var | None = None  # of all elements of x

    def emit(self) -> None:
        p, rows = self.p, self.w.rows
        m = rows if constant(rows) is None else constant(rows)
        blocks = self.rows.blocks(m)
        if isinstance(p.arithmetic, NarrowPairs):
            self.marks_of_x = marks_of(self.x, self.w.batch, p.channels, self.lanes)
        with T.parallel(simplify(index(0) + blocks * (p.groups * p.panels))) as task:
            panel, group = kept(task % p.panels), kept(task // p.panels % p.groups)
            top, height = (
                kept(simplify(index(0) + v)) for v in self.rows.rows_of(m, task // (p.panels * p.groups), blocks)
            )
            tall = 2 * self.rows.block_rows + self.rows.mr if self.pieces > 1 else 0
            sums = T.alloc_buffer((self.rows.mr + tall, p.nr), p.arithmetic.total, align=64)
            tiles = kept(ceil_div(height, self.rows.mr))
            whole = Tile(self.x.buffer, p.weight, (), index(0), group, panel, p.run, p.nr, self.lanes)
            self.marks = p.arithmetic.look(whole, self.taps * self.steps)
            if p.arithmetic.begins:
                self.begin = T.alloc_buffer((p.nr,), p.arithmetic.sums, align=64)
                p.arithmetic.beginnings(whole, self.taps * self.steps, self.begin, 0)
            if self.pieces == 1:
                with T.serial(tiles) as tile:
                    self._tile(sums, top, height, tile, index(0), panel, group, None)
                    first = tile * self.rows.mr
                    store(p, sums, top + first, tirx.min(height - first, index(self.rows.mr)), panel, group, self.lanes)
            else:
                with T.serial(index(self.pieces)) as piece:
                    with T.serial(tiles) as tile:
                        self._tile(sums, top, height, tile, tile * self.rows.mr, panel, group, piece)
                store(p, sums, top, height, panel, group, self.lanes)

    def _tile(
        self,
        sums: ir.Var,
        top: ir.Expr,
        height: ir.Expr,
        tile: ir.Expr,
        at: ir.Expr,
        panel: ir.Expr,
        group: ir.Expr,
        piece: ir.Expr | None,
    ) -> None:
        """sums[at : at + mr] (+)= the windows of the tile times the panel, over one piece of the window."""
        p, w, mr = self.p, self.w, self.rows.mr
        origins = [T.alloc_buffer((mr,), "int64") for _ in range(1 + w.rank)]
        last = kept(tirx.min(top + height, w.rows) - index(1))
        row = kept(tirx.min(top + tile * mr, last))
        at_row = RunningPlace(w, row)
        for r in range(mr):
            n, *place = at_row.axes
            T.buffer_store(origins[0], n, [r])
            for axis, o in enumerate(place):
                T.buffer_store(origins[1 + axis], o * w.strides[axis] - self.x.before[axis], [r])
            if r + 1 < mr:
                at_row.advance(tirx.Select(row + r < last, index(1), index(0)))
        acc = [T.alloc_buffer((p.nr,), p.arithmetic.sums) for _ in range(mr)]
        known, zero = self.begin, tirx.const(0, p.arithmetic.sums)
        self._each(lambda r, v: T.buffer_store(acc[r], zero if known is None else known[v], [v]))
        if piece is not None:
            with T.If(piece > 0), T.Then():
                self._each(lambda r, v: T.buffer_store(acc[r], sums[at + r, v], [v]))
        share = -(-self.taps // self.pieces)
        begin = index(0) if piece is None else kept(piece * share)
        count = index(self.taps) if piece is None else tirx.min(index(share), self.taps - begin)
        with T.serial(count) as step:
            tap = kept(begin + step)
            elements, marks, reached = self._elements(origins, tap, group)
            tile_here = _WindowTile(
                x=self.x.buffer,
                weight=p.weight,
                acc=[[buffer] for buffer in acc],
                start=index(0),
                chunk=group,
                panel=panel,
                kc=p.run,
                nr=p.nr,
                lanes=self.lanes,
                runs=tuple(elements),
                marks_of_runs=tuple(marks),
                first=tap * self.steps,
                marks=self.marks,
            )
            with ExitStack() as where:
                if reached is not None:
                    where.enter_context(T.If(reached))
                    where.enter_context(T.Then())
                for half in p.arithmetic.walks(mr, self.vectors):
                    with T.serial(index(self.steps // self.unroll)) as ko:
                        p.arithmetic.steps(replace(tile_here, half=half), ko * self.unroll, self.unroll)
                p.arithmetic.mend(tile_here, tap * self.steps)
        self._each(lambda r, v: T.buffer_store(sums, acc[r][v], [at + r, v]))

    def _elements(
        self, origins: Sequence[ir.Var], tap: ir.Expr, group: ir.Expr
    ) -> tuple[list[ir.Var], list[ir.Var], ir.Expr | None]:
        """For each window of the tile its run of memory at element `tap`, and the marks of that; whether any is of x.

        None where all are, or where multiplying zeros takes no longer than to find that out.
        """
        p, w = self.p, self.w
        ks = [kept(simplify(k)) for k in unravel(tap, [index(k) for k in p.taps])] if p.taps else []
        if p.joins:
            ks.append(index(0))
        apart, dtype = p.arithmetic.takes_apart, str(self.x.buffer.dtype)
        word = self.group if p.arithmetic.words else 1
        first = group * (p.inner // self.group)
        found, marks, some_inside = [], [], []
        for r in range(self.rows.mr):
            place = [origins[1 + a][r] + k * w.dilations[a] for a, k in enumerate(ks)]
            if apart:
                address = tirx.address_of(self.x.buffer[(origins[0][r], *place[:-1], 0, place[-1], first)])
            else:
                address = tirx.address_of(self.x.buffer[(origins[0][r], *place, group * (p.inner // word))])
            inside = [
                test
                for a, at in enumerate(place)
                if not self.x.is_inside(a)
                for test in (at >= 0, at < self.x.sizes[a])
            ]
            if inside:
                some_inside.append(tirx.all(*inside))
                address = address_or_zeros(p.run, some_inside[-1], address)
            shape, strides = (
                ((2, self.steps), [self.x.sizes[-1] * (p.channels // self.group), 1])
                if apart
                else ((p.run // word,), None)
            )
            found.append(run_at(address, shape, dtype, f"window{r}", strides))
            if self.marks_of_x is not None:
                marks.append(self._marks_at(self.marks_of_x, r, (origins[0][r], *place, first)))
        skips = some_inside and self.steps * self.vectors >= _SKIPPED_FROM
        return found, marks, tirx.any(*some_inside) if skips else None

    def _marks_at(self, marks: ir.Var, row: int, place: Sequence[ir.Expr | int]) -> ir.Var:
        """The marks of a run that begins at `place`; bytes have their padding, so that no run lies outside."""
        return run_at(tirx.address_of(marks[tuple(place)]), (self.steps,), "uint8", f"marks{row}")

    def _each(self, emit: Callable[[int, ir.Expr], None]) -> None:
        """emit(window, columns) for all vectors of the register tile."""
        for r in range(self.rows.mr):
            with vectors(self.p.nr, self.lanes) as at:
                emit(r, at)
