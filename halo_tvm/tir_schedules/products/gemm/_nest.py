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
from contextlib import nullcontext
from dataclasses import replace

from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from ....dimensions import is_one
from ...code.lanes import index, kept
from ...code.nests import root_block, vectors
from ...code.prefetch import CACHE_LINE_BYTES
from ...code.tile_registers import release
from ...code.timed import ONLY_TIMED
from ...stages import emit_stages
from .amx import InTiles
from .arithmetic import Operands, Tile
from .chain import Chain
from .tile import Pass, each_column, tiles_of
from .tiling import Tiling


def build(chain: Chain, tiling: Tiling) -> s_tir.SBlockRealize:
    """The whole nest as a root block."""
    with root_block() as builder:
        if _heights(chain, tiling) != tiling.row_counts(chain.rows):
            T.sblock_attr({ONLY_TIMED: True})
        operands = chain.arithmetic.prepare(
            chain.x, chain.m, chain.chunks * chain.kc, tiling.lanes, chain.beside_weight
        )
        if chain.chunks == 1:
            _tasks(chain, tiling, operands, None)
        else:
            with T.serial(index(chain.chunks)) as chunk:
                _tasks(chain, tiling, operands, chunk)
    return builder.get()


def _tasks(chain: Chain, t: Tiling, operands: Operands, chunk: ir.Var | None) -> None:
    """Row blocks outermost: threads take runs of tasks, so that each keeps to its own rows from kernel to kernel."""
    m = chain.m if chain.rows is None else chain.rows
    blocks = t.blocks(m)
    tasks = chain.panels * blocks
    with T.parallel(index(tasks) if isinstance(tasks, int) else tasks) as task:
        top, height, panel = index(0), chain.m, task
        if not is_one(blocks):
            block, panel = kept(task // chain.panels), kept(task % chain.panels)
            top, height = map(kept, t.rows_of(m, block, blocks))
        tiles = t.tiles(height)
        scratch = T.alloc_buffer((t.mr, chain.parts * chain.nr), chain.arithmetic.total, align=64)
        ahead = _lines_per_pass(chain, t, tiles)
        whole = Tile(
            operands.x, chain.weight, (), top, 0 if chunk is None else chunk, panel, chain.kc, chain.nr, t.lanes
        )
        marks = chain.arithmetic.look(whole, chain.steps)
        begin = _beginnings(chain, whole, height)
        unpacked = chain.arithmetic.unpack(chain, t, panel, height)
        with T.serial(tiles) as step:
            start, rows = t.tile_of(height, step, tiles)
            start, rows = kept(top + start), kept(rows)
            if chunk is not None:
                _load_partial(chain, t, scratch, chunk, panel, start, rows)
            with nullcontext(0) if chain.parts == 1 else T.serial(index(chain.parts)) as part:
                of_part, column = panel + part * chain.panels, part * chain.nr
                pass_ = Pass(
                    operands, scratch, column, 0 if chunk is None else chunk, of_part, start, step, ahead, marks, begin
                )
                if unpacked is not None:
                    pass_ = replace(pass_, unpacked=unpacked._replace(part=part))
                tiles_of(chain, t, pass_, rows, _heights(chain, t), chunk is not None)
            _store(chain, t, operands.row_factor, scratch, chunk, panel, start, rows)
        if isinstance(chain.arithmetic, InTiles):
            release(scratch)


def _beginnings(chain: Chain, tile: Tile, rows: ir.Expr) -> ir.Var | None:
    """What the sums of a task of `rows` rows begin with where that is not 0: those of all parts of its panel."""
    few = chain.arithmetic.few
    if not chain.arithmetic.begins or (chain.rows is not None and chain.rows <= few):
        return None
    found = T.alloc_buffer((chain.parts * chain.nr,), chain.arithmetic.sums, align=64)
    with T.If(rows > few), T.Then():
        for part in range(chain.parts):
            of_part = replace(tile, panel=tile.panel + part * chain.panels)
            chain.arithmetic.beginnings(of_part, chain.steps, found, part * chain.nr)
    return found


def _heights(chain: Chain, t: Tiling) -> list[int]:
    """Numbers of rows of the tiles that there is code for: of all that can occur, or of those that are timed."""
    if not chain.timed:
        return t.row_counts(chain.rows)
    return sorted({count for rows in chain.timed for count in t.row_counts(rows)}, reverse=True)


def _lines_per_pass(chain: Chain, t: Tiling, passes: ir.Expr) -> ir.Expr:
    """Cache lines of the next panel that fall to one pass over the present one."""
    lines = chain.panel_bytes // CACHE_LINE_BYTES
    return kept(tirx.ceildiv(lines, tirx.max(passes, 1))) if t.prefetch else 0


def _load_partial(
    chain: Chain, t: Tiling, scratch: ir.Var, chunk: ir.Var, panel: ir.Expr, start: ir.Expr, rows: ir.Expr
) -> None:
    """Bring the sums of earlier chunks, which wait in the output, into the scratch tile."""
    out = chain.outputs[-1]
    with T.serial(rows) as r:

        def row(at: ir.Expr, column: ir.Expr, width: int) -> None:
            with T.vectorized(index(width)) as lane:
                T.buffer_store(scratch, out[start + r, column + lane], [r, at + lane])

        with T.If(chunk == 0):
            with T.Then():
                with vectors(chain.nr, t.lanes) as at:
                    T.buffer_store(scratch, tirx.const(0, chain.arithmetic.total), [r, at])
            with T.Else():
                each_column(chain, t, panel, row)


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
            with T.vectorized(index(width)) as lane:
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
            each_column(chain, t, panel, finish)
        else:
            with T.If(chunk < chain.chunks - 1):
                with T.Then():
                    each_column(chain, t, panel, put_away)
                with T.Else():
                    each_column(chain, t, panel, finish)
