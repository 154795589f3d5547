"""The loop nest of a packed GEMM, built statement by statement.

Before (blocks):   for i, j, k: acc;   for i, j: stage 1;   for i, j: stage 2 ...
After:
    for chunk:                                       only with K chunks; partial sums wait in the output
        parallel for task = (row block, panel):
            for tile of up to mr rows:
                for part of the columns:                 only where they are taken apart behind the product
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
from contextlib import nullcontext
from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ....dimensions import is_one
from ...code.prefetch import CACHE_LINE_BYTES, prefetch
from ...code.timed import ONLY_TIMED
from ...stages import emit_stages
from ..row_tiling import switch
from ._chain import Chain
from ._tiling import Tiling
from .arithmetic import Operands, Tile


def _i64(value: int) -> tirx.IntImm:
    """Loop extents have the type of the rows: mixed types would hide that an index vector is contiguous."""
    return tirx.IntImm("int64", value)


def build(chain: Chain, tiling: Tiling) -> s_tir.SBlockRealize:
    """The whole nest as a root block."""
    with IRBuilder() as builder, T.sblock("root"):
        T.reads()
        T.writes()
        if _heights(chain, tiling) != tiling.row_counts(chain.rows):
            T.sblock_attr({ONLY_TIMED: True})
        operands = chain.arithmetic.prepare(
            chain.x, chain.m, chain.chunks * chain.kc, tiling.lanes, chain.beside_weight
        )
        if chain.chunks == 1:
            _tasks(chain, tiling, operands, None)
        else:
            with T.serial(_i64(chain.chunks)) as chunk:
                _tasks(chain, tiling, operands, chunk)
    return builder.get()


def _tasks(chain: Chain, t: Tiling, operands: Operands, chunk: ir.Var | None) -> None:
    """Row blocks outermost: threads take runs of tasks, so that each keeps to its own rows from kernel to kernel."""
    m = chain.m if chain.rows is None else chain.rows
    blocks = t.blocks(m)
    tasks = chain.panels * blocks
    with T.parallel(_i64(tasks) if isinstance(tasks, int) else tasks) as task:
        top, height, panel = _i64(0), chain.m, task
        if not is_one(blocks):
            block, panel = task // chain.panels, task % chain.panels
            top, height = map(T.bind, t.rows_of(m, block, blocks))
        tiles = tirx.ceildiv(height, t.mr)
        scratch = T.alloc_buffer((t.mr, chain.parts * chain.nr), chain.arithmetic.total, align=64)
        ahead = _lines_per_pass(chain, t, tiles)
        with T.serial(tiles) as step:
            start, rows = t.tile_of(height, step, tiles)
            # Kept in memory, not in a binding: lowering would inline the expression into every index.
            place = T.alloc_buffer((2,), "int64")
            T.buffer_store(place, top + start, [0])
            T.buffer_store(place, rows, [1])
            start, rows = place[0], place[1]
            if chunk is not None:
                _load_partial(chain, t, scratch, chunk, panel, start, rows)
            with nullcontext(0) if chain.parts == 1 else T.serial(_i64(chain.parts)) as part:
                of_part, column = panel + part * chain.panels, part * chain.nr
                pass_ = Pass(operands, scratch, column, 0 if chunk is None else chunk, of_part, start, step, ahead)
                emit = _tile if chain.arithmetic.promoted_every is None else _promoted_tile
                switch(rows, _heights(chain, t), lambda r, p=pass_: emit(chain, t, p, r, chunk is not None))
            _store(chain, t, operands.row_factor, scratch, chunk, panel, start, rows)


def _heights(chain: Chain, t: Tiling) -> list[int]:
    """Numbers of rows of the tiles that there is code for: of all that can occur, or of those that are timed."""
    if not chain.timed:
        return t.row_counts(chain.rows)
    return sorted({count for rows in chain.timed for count in t.row_counts(rows)}, reverse=True)


def _lines_per_pass(chain: Chain, t: Tiling, passes: ir.Expr) -> ir.Expr:
    """Cache lines of the next panel that fall to one pass over the present one."""
    lines = chain.panel_bytes // CACHE_LINE_BYTES
    return T.bind(tirx.ceildiv(lines, tirx.max(passes, 1))) if t.prefetch else 0


@dataclass(frozen=True)
class Pass:
    """One pass of a tile over a panel: its operands, and where it is."""

    operands: Operands
    scratch: ir.Var
    column: ir.Expr | int  # where the part of the panel begins in the scratch tile
    chunk: ir.Expr | int
    panel: ir.Expr
    start: ir.Expr  # first row of the tile
    step: ir.Var  # number of the pass over this panel
    ahead: ir.Expr  # cache lines of the next panel that fall to one pass


def _tile(chain: Chain, t: Tiling, p: Pass, rows: int, continued: bool) -> None:
    """scratch[:rows] (+)= x[start : start + rows, chunk] @ weight[chunk, panel], in registers.

    `continued`: sums of earlier chunks are in the scratch tile already.
    """

    def first(r: int, at: ir.Expr) -> ir.Expr:
        return p.scratch[r, p.column + at] if continued else tirx.const(0, chain.arithmetic.sums)

    def leave(r: int, at: ir.Expr, total: ir.Expr) -> None:
        T.buffer_store(p.scratch, total, [r, p.column + at])

    _sums(chain, t, p, rows, (0, chain.steps), first, leave)


def _promoted_tile(chain: Chain, t: Tiling, p: Pass, rows: int, continued: bool) -> None:
    """The same with sums of a narrower type, which are added to those of the product after every few steps."""
    arithmetic, every = chain.arithmetic, chain.arithmetic.promoted_every
    zero, vectors = tirx.const(0, arithmetic.total), _i64(chain.nr // t.lanes)
    in_registers = arithmetic.in_registers(rows, chain.nr // t.lanes)
    if in_registers:
        kept = [T.alloc_buffer((chain.nr,), arithmetic.total) for _ in range(rows)]
        for r, buffer in enumerate(kept):
            with T.unroll(vectors) as v, T.vectorized(_i64(t.lanes)) as lane:
                at = v * t.lanes + lane
                T.buffer_store(buffer, p.scratch[r, p.column + at] if continued else zero, [at])
    elif not continued:
        with T.serial(rows) as r, T.serial(vectors) as v, T.vectorized(_i64(t.lanes)) as lane:
            T.buffer_store(p.scratch, zero, [r, p.column + v * t.lanes + lane])

    def block_of(block: ir.Expr, count: int) -> None:
        def first(r: int, at: ir.Expr) -> ir.Expr:
            return arithmetic.first(p.operands, p.start + r, block)

        def add(r: int, at: ir.Expr, sums: ir.Expr) -> None:
            buffer, place = (kept[r], [at]) if in_registers else (p.scratch, [r, p.column + at])
            row = p.start + r
            value = arithmetic.promoted(p.operands, row, block, p.panel, at, sums, buffer[tuple(place)])
            T.buffer_store(buffer, value, place)

        _sums(chain, t, p, rows, (block * every, count), first, add)

    whole, rest = divmod(chain.steps, every)
    with T.serial(_i64(whole)) as block:
        block_of(block, every)
    if rest:
        block_of(_i64(whole), rest)
    for r in range(rows if in_registers else 0):
        with T.unroll(vectors) as v, T.vectorized(_i64(t.lanes)) as lane:
            at = v * t.lanes + lane
            T.buffer_store(p.scratch, kept[r][at], [r, p.column + at])


def _sums(
    chain: Chain,
    t: Tiling,
    p: Pass,
    rows: int,
    steps: tuple[ir.Expr | int, int],
    first: Callable[[int, ir.Expr], ir.Expr],
    leave: Callable[[int, ir.Expr, ir.Expr], None],
) -> None:
    """The k loop over `steps` (first, number): sums start at first(row, column) and go to leave(row, column, sum)."""
    arithmetic, (begin, count) = chain.arithmetic, steps
    lanes = t.lanes * arithmetic.lane_factor
    vectors, zero = _i64(chain.nr // lanes), tirx.const(0, arithmetic.sums)
    # One buffer per row, in the default scope: only those, below 1 KiB, become stack slots, which LLVM
    # turns into registers. A larger one, or one of scope "local", would be heap memory.
    chains = arithmetic.chains(rows, chain.nr // lanes)
    acc = [[T.alloc_buffer((chain.nr,), arithmetic.sums) for _ in range(chains)] for _ in range(rows)]
    for r in range(rows):
        for index, buffer in enumerate(acc[r]):
            with T.unroll(vectors) as v, T.vectorized(_i64(lanes)) as lane:
                at = v * lanes + lane
                T.buffer_store(buffer, zero if index else first(r, at), [at])
    tile = Tile(p.operands.x, chain.weight, acc, p.start, p.chunk, p.panel, chain.kc, chain.nr, lanes)
    unroll = t.unroll if count % t.unroll == 0 else 1
    for number, half in enumerate(arithmetic.walks(rows, chain.nr // lanes)):
        with T.serial(_i64(count // unroll)) as ko:
            # Short tiles wait for memory anyway: there the prefetches only take load slots (M = 1: 5 to 30 %).
            for q in range(t.prefetch if 2 * rows > t.mr and number == 0 else 0):
                done = ko if isinstance(begin, int) and begin == 0 else begin // unroll + ko
                prefetch(chain.weight_line(p.chunk, p.panel + 1, p.step * p.ahead + done * t.prefetch + q))
            with T.unroll(_i64(unroll)) as ki:
                k = ko * unroll + ki
                arithmetic.step(replace(tile, half=half), k if isinstance(begin, int) and begin == 0 else begin + k)
    arithmetic.settle(tile)
    for r in range(rows):
        with T.unroll(vectors) as v, T.vectorized(_i64(lanes)) as lane:
            at = v * lanes + lane
            leave(r, at, functools.reduce(operator.add, [buffer[at] for buffer in acc[r]]))


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
                    T.buffer_store(scratch, tirx.const(0, chain.arithmetic.total), [r, v * t.lanes + lane])
            with T.Else():
                _columns(chain, t, panel, row)


def _store(
    chain: Chain,
    t: Tiling,
    scale: ir.Var | None,
    scratch: ir.Var,
    chunk: ir.Var | None,
    panel: ir.Expr,
    start: ir.Expr,
    rows: ir.Expr,
) -> None:
    """Run the stages over the scratch tile; before the last chunk, put the sums away instead."""
    with T.serial(rows) as r:

        def put_away(at: ir.Expr, column: ir.Expr, width: int) -> None:
            with T.vectorized(_i64(width)) as lane:
                T.buffer_store(chain.outputs[-1], scratch[r, at + lane], [start + r, column + lane])

        def finish(at: ir.Expr, column: ir.Expr, width: int) -> None:
            def total(lane: ir.Expr, part: int) -> ir.Expr:
                value = scratch[r, part * chain.nr + at + lane]
                return value if scale is None else value * scale[start + r]

            def place(lane: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
                return start + r, column + lane

            products = {sums: functools.partial(total, part=part) for part, sums in enumerate(chain.sums)}
            emit_stages(chain.stages, products, chain.outputs, place, width)

        if chunk is None:
            _columns(chain, t, panel, finish)
        else:
            with T.If(chunk < chain.chunks - 1):
                with T.Then():
                    _columns(chain, t, panel, put_away)
                with T.Else():
                    _columns(chain, t, panel, finish)
