"""The loop nest of a batched product, built statement by statement.

Before (blocks):   for batch, i, j, k: product;   for batch, i, j: stage 1 ...
After:
    parallel for task = (batch, row block, panel of nr columns):
        for piece of k:
            pack the piece of the panel, [kc, nr]            not where b has it as rows and one tile reads it once
            for tile of up to mr rows of the block:
                switch on its number of rows: k loop over rows x nr sums held in registers -> sums of the block
        for each row of the block: all stages, vector by vector

Packing costs each element of b one load and one store per block of rows, and makes a panel that is read front to back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from ....register_tiles import WIDTHS, turned
from ...code.lanes import ceil_div, constant, index, kept, product, unravel
from ...code.nests import root_block, vectors
from ...stages import emit_stages
from ..row_tiling import switch
from ._problem import Problem
from ._tiling import Tiling

Column = Callable[[ir.Expr, ir.Expr], ir.Expr]  # element of b at (k in the piece, column in the panel)


def build(problem: Problem, t: Tiling) -> s_tir.SBlockRealize:
    """The whole nest as a root block."""
    with root_block() as builder:
        if constant(product([*problem.batch, problem.m, problem.n])) == 0:
            T.evaluate(0)  # nothing to write, and zeros that are divided by
        else:
            _tasks(problem, t)
    return builder.get()


def _tasks(problem: Problem, t: Tiling) -> None:
    rows = constant(problem.m)
    m = problem.m if rows is None else rows
    blocks, panels = t.blocks(m), ceil_div(problem.n, t.nr)
    with T.parallel(product([*problem.batch, panels * blocks])) as task:
        panel, block = kept(task % panels), kept(task // panels % blocks)
        batch = [kept(at) for at in unravel(task // panels // blocks, problem.batch)]
        top, height = map(kept, t.rows_of(m, block, blocks))
        _task(_Task(problem, t, batch, top, height, kept(panel * t.nr)))


@dataclass(frozen=True)
class _Task:
    """One panel of one block of rows of one product."""

    problem: Problem
    tiling: Tiling
    batch: list[ir.Expr]
    top: ir.Expr  # first row
    height: ir.Expr
    left: ir.Expr  # first column

    @property
    def width(self) -> ir.Expr:
        """Columns of the panel that exist."""
        return tirx.min(self.problem.n - self.left, index(self.tiling.nr))

    @property
    def is_whole(self) -> ir.Expr:
        return self.left + self.tiling.nr <= self.problem.n


def _task(task: _Task) -> None:
    problem, t = task.problem, task.tiling
    rows, depth = constant(problem.m), constant(problem.k)
    height, kc = t.most_rows(rows), t.kc if depth is None else max(1, min(t.kc, depth))
    sums = T.alloc_buffer((max(1, height), t.nr), "float32", align=64)
    with T.serial(task.height) as r, vectors(t.nr, t.lanes) as at:
        T.buffer_store(sums, tirx.const(0, "float32"), [r, at])

    def packed() -> None:
        panel = T.alloc_buffer((kc, t.nr), "float32", align=64)
        with T.serial(ceil_div(problem.k, kc)) as piece:
            first = kept(piece * kc)
            count = kept(tirx.min(problem.k - first, index(kc))) if depth is None or depth % kc else index(kc)
            _pack(task, panel, first, count)
            _tiles(task, sums, first, count, lambda k, at: panel[k, at])

    def direct() -> None:
        _tiles(task, sums, index(0), problem.k, lambda k, at: problem.b_at(task.batch, k, task.left + at))

    if problem.b_transposed or (rows is not None and min(t.heights(rows)) > t.mr):
        packed()
    else:
        with T.If(tirx.all(task.height <= t.mr, task.is_whole)):
            with T.Then():
                direct()
            with T.Else():
                packed()
    _store(task, sums)


def _tiles(task: _Task, sums: ir.Var, first: ir.Expr, count: ir.Expr, b: Column) -> None:
    """sums += a[block, first : first + count] @ the panel, tile by tile."""
    t = task.tiling
    tiles = kept(ceil_div(task.height, t.mr))
    with T.serial(tiles) as step:
        start, rows = t.tile_of(task.height, step, tiles)
        start, rows = kept(start), kept(rows)
        counts = t.row_counts(constant(task.problem.m))
        switch(rows, counts, lambda rows: _tile(task, sums, start, rows, first, count, b))


def _tile(task: _Task, sums: ir.Var, start: ir.Expr, rows: int, first: ir.Expr, count: ir.Expr, b: Column) -> None:
    problem, t = task.problem, task.tiling
    # One buffer per row, in the default scope: only those become stack slots, which LLVM turns into registers.
    acc = [T.alloc_buffer((t.nr,), "float32") for _ in range(rows)]

    def each(emit: Callable[[int, ir.Expr], None]) -> None:
        for r in range(rows):
            with vectors(t.nr, t.lanes) as at:
                emit(r, at)

    each(lambda r, at: T.buffer_store(acc[r], sums[start + r, at], [at]))
    with T.serial(count) as k:

        def multiply(r: int, at: ir.Expr) -> None:
            a = problem.a_at(task.batch, task.top + (start + r), first + k)
            T.buffer_store(acc[r], acc[r][at] + a * b(k, at), [at])

        each(multiply)
    each(lambda r, at: T.buffer_store(sums, acc[r][at], [start + r, at]))


def _pack(task: _Task, panel: ir.Var, first: ir.Expr, count: ir.Expr) -> None:
    """panel[k, j] = b[first + k, left + j]; what lies behind the last column is any number that exists."""
    if task.problem.b_transposed and task.tiling.lanes in WIDTHS:
        _pack_transposed(task, panel, first, count)
    else:
        _pack_rows(task, panel, first, count)


def _pack_rows(task: _Task, panel: ir.Var, first: ir.Expr, count: ir.Expr) -> None:
    problem, t = task.problem, task.tiling

    def whole() -> None:
        with T.serial(count) as k, vectors(t.nr, t.lanes) as at:
            T.buffer_store(panel, problem.b_at(task.batch, first + k, task.left + at), [k, at])

    def cropped() -> None:
        with T.serial(count) as k, T.serial(index(t.nr)) as j:
            column = tirx.min(task.left + j, problem.n - 1)
            T.buffer_store(panel, problem.b_at(task.batch, first + k, column), [k, j])

    _where_whole(task, whole, cropped)


def _pack_transposed(task: _Task, panel: ir.Var, first: ir.Expr, count: ir.Expr) -> None:
    """Squares of lanes x lanes turned in registers; the rest of k element by element."""
    problem, t, lanes = task.problem, task.tiling, task.tiling.lanes

    def column(at: ir.Expr) -> ir.Expr:
        return tirx.min(task.left + at, problem.n - 1)

    with T.serial(count // lanes) as square, T.serial(index(t.vectors)) as v:
        rows = [
            problem.b_at(task.batch, tirx.Ramp(first + square * lanes, index(1), lanes), column(v * lanes + j))
            for j in range(lanes)
        ]
        bound, columns = turned(rows, "float32")
        for statement in bound:
            T.Bind(statement.value, var=statement.var)
        for k, vector in enumerate(columns):
            T.buffer_store(panel, vector, [square * lanes + k, tirx.Ramp(v * lanes, index(1), lanes)])
    with T.serial(count % lanes) as rest, T.serial(index(t.nr)) as j:
        k = count - count % lanes + rest
        T.buffer_store(panel, problem.b_at(task.batch, first + k, column(j)), [k, j])


def _store(task: _Task, sums: ir.Var) -> None:
    """The stages over the rows of the block, for the columns that exist."""
    problem, t = task.problem, task.tiling
    with T.serial(task.height) as r:

        def emit(at: ir.Expr, width: int) -> None:
            def place(lane: ir.Expr) -> list[ir.Expr]:
                return [*task.batch, task.top + r, task.left + at + lane]

            def total(lane: ir.Expr) -> ir.Expr:
                return sums[r, at + lane]

            emit_stages(problem.stages, {problem.product: total}, problem.outputs, place, width)

        def whole() -> None:
            with T.unroll(index(t.vectors)) as v:
                emit(v * t.lanes, t.lanes)

        def cropped() -> None:
            with T.serial(task.width // t.lanes) as v:
                emit(v * t.lanes, t.lanes)
            with T.serial(task.width % t.lanes) as j:
                emit(task.width // t.lanes * t.lanes + j, 1)

        _where_whole(task, whole, cropped)


def _where_whole(task: _Task, whole: Callable[[], None], cropped: Callable[[], None]) -> None:
    """`whole` for panels that have all their columns, `cropped` for the last one otherwise."""
    n, nr = constant(task.problem.n), task.tiling.nr
    if n is not None and n % nr == 0:
        whole()
    elif n is not None and n < nr:
        cropped()
    else:
        with T.If(task.is_whole):
            with T.Then():
                whole()
            with T.Else():
                cropped()
