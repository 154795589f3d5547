"""The loop nest of a packed GEMM, built statement by statement.

Before (blocks):   for i, j, k: acc;   for i, j: stage 1;   for i, j: stage 2 ...
After:
    for chunk:                                       only with K chunks; partial sums wait in the output
        parallel for task = (panel, row block):
            for tile of up to mr rows:
                switch on its number of rows: k loop over rows x nr accumulators held in registers
                for each row: all stages, vector by vector

Why not Schedule primitives: a symbolic number of rows leaves a tail, and a tail tile of exactly its
own number of rows, chosen outside the k loop, cannot be written as splits of one loop. The tile
leaves its sums in a scratch tile in L1, so the epilogue exists once, whatever the number of rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .._blocks import substitute
from .._prefetch import CACHE_LINE_BYTES, prefetch
from .._timed import ONLY_TIMED
from ._arithmetic import Tile
from ._chain import Chain


@dataclass(frozen=True)
class Tiling:
    """How the nest is cut; see the rule's Decision for the meaning of the shared fields."""

    lanes: int
    mr: int
    unroll: int
    prefetch: int
    row_split: int
    balance: bool


def _i64(value: int) -> tirx.IntImm:
    """Loop extents have the type of the rows: mixed types would hide that an index vector is contiguous."""
    return tirx.IntImm("int64", value)


def build(chain: Chain, tiling: Tiling) -> s_tir.SBlockRealize:
    """The whole nest as a root block."""
    with IRBuilder() as builder, T.sblock("root"):
        T.reads()
        T.writes()
        if _heights(chain, tiling) != row_counts(chain.rows, tiling.mr, tiling.balance):
            T.sblock_attr({ONLY_TIMED: True})
        if chain.chunks == 1:
            _tasks(chain, tiling, None)
        else:
            with T.serial(_i64(chain.chunks)) as chunk:
                _tasks(chain, tiling, chunk)
    return builder.get()


def _tasks(chain: Chain, t: Tiling, chunk: ir.Var | None) -> None:
    tiles = tirx.ceildiv(chain.m, t.mr)
    with T.parallel(_i64(chain.panels * t.row_split)) as task:
        panel, block = (task, 0) if t.row_split == 1 else (task // t.row_split, task % t.row_split)
        first, last = 0, tiles
        if t.row_split > 1:
            per = tirx.ceildiv(tiles, t.row_split)
            first, last = T.bind(tirx.min(block * per, tiles)), T.bind(tirx.min(block * per + per, tiles))
        scratch = T.alloc_buffer((t.mr, chain.nr), chain.arithmetic.sums, align=64)
        ahead = _lines_per_pass(chain, t, last - first)
        with T.serial(last - first) as step:
            at = first + step
            start, rows = _tile_rows(chain, t, at, tiles)
            # Kept in memory, not in a binding: lowering would inline the expression into every index.
            place = T.alloc_buffer((2,), "int64")
            T.buffer_store(place, start, [0])
            T.buffer_store(place, rows, [1])
            start, rows = place[0], place[1]
            if chunk is not None:
                _load_partial(chain, t, scratch, chunk, panel, start, rows)
            _dispatch(chain, t, rows, lambda r: _tile(chain, t, scratch, chunk, panel, start, r, step, ahead))
            _store(chain, t, scratch, chunk, panel, start, rows)


def _tile_rows(chain: Chain, t: Tiling, at: ir.Expr, tiles: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """(first row, number of rows) of tile `at`: all full but the last, or all nearly equal."""
    if not t.balance:
        return at * t.mr, tirx.min(chain.m - at * t.mr, t.mr)
    base, extra = chain.m // tiles, chain.m % tiles
    return at * base + tirx.min(at, extra), base + tirx.if_then_else(at < extra, 1, 0)


def row_counts(rows: int | None, mr: int, balance: bool) -> list[int]:
    """Numbers of rows a tile can have, the most frequent first."""
    if rows is None:
        return list(range(mr, 0, -1))
    if rows == 0:
        return [mr]
    tiles = -(-rows // mr)
    if balance:
        return sorted({rows // tiles, -(-rows // tiles)}, reverse=True)
    return sorted({min(mr, rows), rows - (tiles - 1) * mr}, reverse=True)


def _heights(chain: Chain, t: Tiling) -> list[int]:
    """Numbers of rows of the tiles that there is code for: of all that can occur, or of those that are timed."""
    if not chain.timed:
        return row_counts(chain.rows, t.mr, t.balance)
    return sorted({count for rows in chain.timed for count in row_counts(rows, t.mr, t.balance)}, reverse=True)


def _dispatch(chain: Chain, t: Tiling, rows: ir.Expr, emit: Callable[[int], None]) -> None:
    """if rows == a: emit(a) elif rows == b: emit(b) ..., over the counts that can occur."""

    def chainlink(counts: list[int]) -> None:
        if len(counts) == 1:
            emit(counts[0])
            return
        with T.If(rows == counts[0]):
            with T.Then():
                emit(counts[0])
            with T.Else():
                chainlink(counts[1:])

    chainlink(_heights(chain, t))


def _lines_per_pass(chain: Chain, t: Tiling, passes: ir.Expr) -> ir.Expr:
    """Cache lines of the next panel that fall to one pass over the present one."""
    lines = chain.panel_bytes // CACHE_LINE_BYTES
    return T.bind(tirx.ceildiv(lines, tirx.max(passes, 1))) if t.prefetch else 0


def _tile(
    chain: Chain,
    t: Tiling,
    scratch: ir.Var,
    chunk: ir.Var | None,
    panel: ir.Expr,
    start: ir.Expr,
    rows: int,
    step: ir.Var,
    ahead: ir.Expr,
) -> None:
    """scratch[:rows] (+)= x[start : start + rows, chunk] @ weight[chunk, panel], in registers."""
    chunk_at = 0 if chunk is None else chunk
    vectors = _i64(chain.nr // t.lanes)
    sums, zero = chain.arithmetic.sums, tirx.const(0, chain.arithmetic.sums)
    # One buffer per row, in the default scope: only those, below 1 KiB, become stack slots, which LLVM
    # turns into registers. A larger one, or one of scope "local", would be heap memory.
    chains = chain.arithmetic.chains(rows, chain.nr // t.lanes)
    acc = [[T.alloc_buffer((chain.nr,), sums) for _ in range(chains)] for _ in range(rows)]
    for r in range(rows):
        for index, buffer in enumerate(acc[r]):
            with T.unroll(vectors) as v, T.vectorized(_i64(t.lanes)) as lane:
                at = v * t.lanes + lane
                T.buffer_store(buffer, zero if chunk is None or index else scratch[r, at], [at])
    tile = Tile(chain.x, chain.weight, acc, start, chunk_at, panel, chain.kc, chain.nr, t.lanes)
    with T.serial(_i64(chain.steps // t.unroll)) as ko:
        # Short tiles wait for memory anyway: there the prefetches only take load slots (M = 1: 5 to 30 %).
        for q in range(t.prefetch if 2 * rows > t.mr else 0):
            prefetch(chain.weight_line(chunk_at, panel + 1, step * ahead + ko * t.prefetch + q))
        with T.unroll(_i64(t.unroll)) as ki:
            chain.arithmetic.step(tile, ko * t.unroll + ki)
    for r in range(rows):
        with T.unroll(vectors) as v, T.vectorized(_i64(t.lanes)) as lane:
            at = v * t.lanes + lane
            T.buffer_store(scratch, functools.reduce(operator.add, [buffer[at] for buffer in acc[r]]), [r, at])


def _columns(chain: Chain, t: Tiling, panel: ir.Expr, emit: Callable[[ir.Expr, ir.Expr, int], None]) -> None:
    """emit(column in the panel, column of the matrix, width) over the panel's columns below n.

    `emit` is called inside the loops; width is the number of lanes its vector loop has.
    """

    def whole() -> None:
        with T.unroll(_i64(chain.nr // t.lanes)) as v:
            emit(v * t.lanes, panel * chain.nr + v * t.lanes, t.lanes)

    def cropped(columns: int) -> None:
        with T.serial(_i64(columns)) as c:
            emit(c, panel * chain.nr + c, 1)

    left = chain.n - (chain.panels - 1) * chain.nr
    if left == chain.nr:
        whole()
    elif chain.panels == 1:
        cropped(left)
    else:
        with T.If(panel < chain.panels - 1):
            with T.Then():
                whole()
            with T.Else():
                cropped(left)


def _load_partial(
    chain: Chain, t: Tiling, scratch: ir.Var, chunk: ir.Var, panel: ir.Expr, start: ir.Expr, rows: ir.Expr
) -> None:
    """Bring the sums of earlier chunks, which wait in the output, into the scratch tile."""
    out = chain.outputs[-1]
    with T.serial(rows) as r:

        def row(at: ir.Expr, column: ir.Expr, width: int) -> None:
            with T.vectorized(_i64(width)) as lane:
                T.buffer_store(scratch, out[start + r, column + lane], [r, at + lane])

        with T.If(chunk == 0):
            with T.Then():
                with T.unroll(_i64(chain.nr // t.lanes)) as v, T.vectorized(t.lanes) as lane:
                    T.buffer_store(scratch, tirx.const(0, chain.arithmetic.sums), [r, v * t.lanes + lane])
            with T.Else():
                _columns(chain, t, panel, row)


def _store(
    chain: Chain,
    t: Tiling,
    scratch: ir.Var,
    chunk: ir.Var | None,
    panel: ir.Expr,
    start: ir.Expr,
    rows: ir.Expr,
) -> None:
    """Run the stages over the scratch tile; before the last chunk, put the sums away instead."""
    with T.serial(rows) as r:

        def partial(at: ir.Expr, column: ir.Expr, width: int) -> None:
            with T.vectorized(_i64(width)) as lane:
                T.buffer_store(chain.outputs[-1], scratch[r, at + lane], [start + r, column + lane])

        def finish(at: ir.Expr, column: ir.Expr, width: int) -> None:
            _epilogue(chain, scratch, r, at, start + r, column, width)

        if chunk is None:
            _columns(chain, t, panel, finish)
        else:
            with T.If(chunk < chain.chunks - 1):
                with T.Then():
                    _columns(chain, t, panel, partial)
                with T.Else():
                    _columns(chain, t, panel, finish)


def _epilogue(
    chain: Chain, scratch: ir.Var, r: ir.Expr, at: ir.Expr, row: ir.Expr, column: ir.Expr, width: int
) -> None:
    """All stages on one vector. Each keeps its value in a vector of its own, so nothing is computed twice."""
    if not chain.stages:
        with T.vectorized(_i64(width)) as lane:
            T.buffer_store(chain.acc, scratch[r, at + lane], [row, column + lane])
        return
    values = [T.alloc_buffer((width,), str(s.out.ty.dtype)) for s in chain.stages]
    for index, stage in enumerate(chain.stages):
        with T.vectorized(_i64(width)) as lane:
            known = {s.out: value[lane] for s, value in zip(chain.stages[:index], values)}
            known[chain.acc] = scratch[r, at + lane]
            value = substitute(stage.value, {stage.i: row, stage.j: column + lane}, known)
            T.buffer_store(values[index], value, [lane])
        if any(stage.out.same_as(out) for out in chain.outputs):
            with T.vectorized(_i64(width)) as lane:
                T.buffer_store(stage.out, values[index][lane], [row, column + lane])
