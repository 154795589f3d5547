"""The loop nest of a convolution by minimal filtering, built statement by statement.

    parallel for task = (block of tiles, share of the panels):
        for tiles of the block:
            for channels, vector by vector: 6 x 6 elements of x, or what surrounds it -> 36 factors
        for panels of the share:
            for each of the 36: factors of the block [tiles, depth] times weight [depth, nr], sums in registers
            for tiles of the block: 36 products -> 4 x 4 results; for those inside: all stages, vector by vector
Along one axis there are 6 in the place of 36, and 4 results. Bytes are added up to words in tiles of 4 x 4, which give
2 x 2 results; two channels of them are multiplied at once.
Tiles are numbered over the batch and all places, so that small images fill blocks too. Panels are shared only where
there are fewer blocks than cores; every share then transforms its block's input for itself, which takes little time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from ....winograd import FLOATS
from ...code.lanes import ceil_div, constant, index, kept, run, simplify, unravel
from ...code.nests import root_block, run_at, vectors
from ...products.gemm.arithmetic import Tile
from ...products.row_tiling import RowTiling
from .._store import Panels, store_place
from .._zeros import EITHER_TEXT, address_or_zeros, either_address, zeros_text
from ._problem import Problem

_APART = 16  # numbers between the factors of a block: a distance of whole pages would leave them one set of the cache


def build(problem: Problem, rows: RowTiling, unroll: int, lanes: int) -> s_tir.SBlockRealize:
    """The whole nest as a root block."""
    with root_block() as builder:
        if constant(problem.tiles) == 0:
            T.evaluate(0)
        else:
            text = zeros_text(problem.windows.channels) if problem.filtering is FLOATS else EITHER_TEXT
            with T.attr(0, "pragma_import_llvm", text):
                _Nest(problem, rows, unroll, lanes).emit()
    return builder.get()


@dataclass(frozen=True)
class _FactorTile(Tile):
    """A tile of the products of factor `chunk`: rows are tiles of the image from `start` on."""

    def of_x(self, row: int, at: ir.Expr, width: int = 1) -> ir.Expr:
        column = (self.start + row) * self.kc + at
        return self.x[self.chunk, run(column, width)]

    def of_weight(self, k: ir.Expr, *at: ir.Expr) -> ir.Expr:
        column, *inner = at
        column = self.panel % self.split * self.nr + column if self.split > 1 else column
        return self.weight[(self.panel // self.split, self.chunk, k, column, *inner)]


class _Nest:
    def __init__(self, problem: Problem, rows: RowTiling, unroll: int, lanes: int) -> None:
        self.p, self.w, self.rows, self.lanes = problem, problem.windows, rows, lanes
        self.dtype, _, self.total = problem.arithmetic.dtypes  # of factors, and of their products
        self.wide = lanes * problem.arithmetic.group  # factors in a vector
        self.steps = problem.depth // problem.arithmetic.group
        self.unroll = max(number for number in range(1, unroll + 1) if self.steps % number == 0)
        self.tile, self.of_tile = problem.filtering.tile, problem.filtering.results
        self.around: ir.Var | None = None  # channels outside of x where they are not floats, which are 0 there
        self.tiles = problem.tiles if constant(problem.tiles) is None else constant(problem.tiles)
        self.tall = 2 * rows.block_rows + rows.mr
        if isinstance(self.tiles, int):
            self.tall = max(rows.mr, *rows.heights(self.tiles))

    def emit(self) -> None:
        p, rows = self.p, self.rows
        blocks = rows.blocks(self.tiles)
        shares = self._shares(blocks)
        if p.filtering is not FLOATS:
            self.around = T.alloc_buffer((self.w.channels,), self.w.x.dtype, align=64)
            outside = tirx.const(0, self.w.x.dtype) if self.w.outside is None else self.w.outside
            with T.serial(index(self.w.channels)) as c:
                T.buffer_store(self.around, outside, [c])
        with T.parallel(simplify(index(0) + blocks * shares)) as task:
            share, block = kept(simplify(task % shares)), task // shares
            top, height = (kept(simplify(index(0) + v)) for v in rows.rows_of(self.tiles, block, blocks))
            factors = T.alloc_buffer((p.factors, self.tall * p.depth + _APART), self.dtype, align=64)
            products = T.alloc_buffer((p.factors, self.tall, p.nr), self.total, align=64)
            results = T.alloc_buffer((p.results, p.nr), self.total, align=64)
            with T.serial(height) as t:
                self._transform(factors, top, t)
            with T.serial(p.factors) as f, T.serial(tirx.max(rows.mr - height, 0) * p.depth) as rest:
                T.buffer_store(factors, tirx.const(0, self.dtype), [f, height * p.depth + rest])
            begin, end = (kept(simplify((share + more) * p.panels // shares)) for more in (0, 1))
            with T.serial(end - begin) as each:
                panel = kept(begin + each)
                with T.serial(p.factors) as f, T.serial(ceil_div(height, rows.mr)) as tile:
                    # The last tile ends with the block: what it shares with the one before is computed twice.
                    first = kept(tirx.max(tirx.min(tile * rows.mr, height - rows.mr), 0))
                    self._multiply(factors, products, f, first, panel)
                with T.serial(height) as t:
                    self._results(products, results, top, t, panel)

    def _shares(self, blocks: ir.Expr | int) -> ir.Expr | int:
        """As `Problem.shares`, of any number of blocks."""
        if isinstance(blocks, int):
            return self.p.shares(blocks, self.rows.cores)
        return kept(tirx.min(index(self.p.panels), ceil_div(index(self.rows.cores), blocks)))

    def _place(self, top: ir.Expr, t: ir.Expr) -> tuple[list[ir.Expr], list[ir.Expr]]:
        """Batch and places in front, and the first result along each other axis, of tile `t` of the block."""
        at = unravel(simplify(top + t), self.p.grid)
        outer, first = at[: 1 + self.p.front], at[1 + self.p.front :]
        return [kept(o) for o in outer], [kept(f * self.of_tile) for f in first]

    def _transform(self, factors: ir.Var, top: ir.Expr, t: ir.Expr) -> None:
        """The factors of one tile, of all elements of the kernel's axes in front."""
        p, w, of_input = self.p, self.w, self.p.filtering.of_input
        rows = self.tile if p.axes == 2 else 1
        (batch, *outer), first = self._place(top, t)
        with T.serial(p.taps) as tap:
            ks = unravel(tap, [index(k) for k in w.kernel[: p.front]])
            steps = zip(outer, ks, w.strides, w.dilations, w.before)
            front = [kept(simplify(o * stride + k * dilation - before)) for o, k, stride, dilation, before in steps]
            elements = [
                [self._element([batch, *front], first, (i, j)[-p.axes :]) for j in range(self.tile)]
                for i in range(rows)
            ]
            with T.serial(ceil_div(index(w.channels), self.wide)) as v:
                c = kept(tirx.min(v * self.wide, w.channels - self.wide))
                half = [[T.alloc_buffer((self.wide,), self.dtype) for _ in range(self.tile)] for _ in range(rows)]
                for j in range(self.tile):
                    with T.vectorized(index(self.wide)) as lane:
                        column = [elements[i][j][c + lane].astype(self.dtype) for i in range(rows)]
                        for i, value in enumerate(of_input(column) if rows > 1 else column):
                            T.buffer_store(half[i][j], value, [lane])
                for i in range(rows):
                    with T.vectorized(index(self.wide)) as lane:
                        for j, value in enumerate(of_input([half[i][j][lane] for j in range(self.tile)])):
                            at = t * p.depth + tap * w.channels + c + lane
                            T.buffer_store(factors, value, [i * self.tile + j, at])

    def _element(self, outer: Sequence[ir.Expr], first: Sequence[ir.Expr], at: Sequence[int]) -> ir.Var:
        """The channels of one element of the tile, or what is outside: `at` it, of the tile that begins at `first`."""
        w, front = self.w, self.p.front
        batch, *place = outer
        place += [start + more - before for start, more, before in zip(first, at, w.before[front:])]
        tests = [
            test
            for axis, here in enumerate(place)
            if axis >= front or not w.is_inside(axis)
            for test in (here >= 0, here < w.sizes[axis])
        ]
        inside, address = tirx.all(*tests), tirx.address_of(w.x[(batch, *place, 0)])
        if self.around is None:
            address = address_or_zeros(w.channels, inside, address)
        else:
            address = either_address(inside, address, tirx.address_of(self.around[0]))
        return run_at(address, (w.channels,), str(w.x.dtype), "element")

    def _multiply(self, factors: ir.Var, products: ir.Var, f: ir.Expr, first: ir.Expr, panel: ir.Expr) -> None:
        """products[f, first : first + mr] = the factors of these tiles times the panel."""
        p, mr = self.p, self.rows.mr
        sums = [T.alloc_buffer((p.nr,), self.total) for _ in range(mr)]
        sizes = (p.depth, p.nr, self.lanes)
        tile = _FactorTile(factors, p.weight, [[each] for each in sums], first, f, panel, *sizes, split=p.split)
        for each in sums:
            with vectors(p.nr, self.lanes) as at:
                T.buffer_store(each, tirx.const(0, self.total), [at])
        with T.serial(index(self.steps // self.unroll)) as ko, T.unroll(index(self.unroll)) as ki:
            p.arithmetic.step(tile, ko * self.unroll + ki)
        for r, each in enumerate(sums):
            with vectors(p.nr, self.lanes) as at:
                T.buffer_store(products, each[at], [f, first + r, at])

    def _results(self, products: ir.Var, results: ir.Var, top: ir.Expr, t: ir.Expr, panel: ir.Expr) -> None:
        """The results of one tile and one panel, and all stages of those that are inside."""
        p, w, of_products = self.p, self.w, self.p.filtering.of_products
        rows, tall = (self.tile, self.of_tile) if p.axes == 2 else (1, 1)
        bits = p.filtering.bits * p.axes
        with T.serial(index(p.nr // self.lanes)) as v:
            half = [[T.alloc_buffer((self.lanes,), self.total) for _ in range(self.tile)] for _ in range(tall)]
            for j in range(self.tile):
                with T.vectorized(index(self.lanes)) as lane:
                    column = [products[i * self.tile + j, t, v * self.lanes + lane] for i in range(rows)]
                    for i, value in enumerate(of_products(column) if rows > 1 else column):
                        T.buffer_store(half[i][j], value, [lane])
            for i in range(tall):
                with T.vectorized(index(self.lanes)) as lane:
                    for j, value in enumerate(of_products([half[i][j][lane] for j in range(self.tile)])):
                        value = value >> tirx.const(bits, self.total) if bits else value
                        T.buffer_store(results, value, [i * self.of_tile + j, v * self.lanes + lane])
        outer, first = self._place(top, t)
        inside = [tirx.min(index(self.of_tile), size - at) for size, at in zip(w.places[p.front :], first)]
        with ExitStack() as loops:
            at = [loops.enter_context(T.serial(count)) for count in inside]
            row = at[0] if p.axes == 1 else at[0] * self.of_tile + at[1]
            place = [*outer, *(kept(start + more) for start, more in zip(first, at))]
            store_place(w, results, row, place, panel, Panels(p.outer, p.panels, p.nr), self.lanes)
