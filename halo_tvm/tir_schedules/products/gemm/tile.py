"""The register tile of a packed GEMM: sums of a few rows and one panel, held in registers over the k loop."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import index, vectors_of
from ...code.nests import vectors
from ...code.prefetch import prefetch
from ..row_tiling import switch
from .amx import InTiles
from .arithmetic import Operands, Tile, Unpacked
from .chain import Chain
from .tiling import Tiling


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
    marks: ir.Var | None = None  # of the steps of the panel
    begin: ir.Var | None = None  # what the sums of the columns begin with, of all parts
    unpacked: Unpacked | None = None  # of the panels of the task, where they are taken apart


def tiles_of(chain: Chain, t: Tiling, p: Pass, rows: ir.Expr, heights: Sequence[int], continued: bool) -> None:
    """One tile of `rows` rows: code for each of `heights`, or for any of them."""

    def in_vectors(count: int) -> None:
        _tile(chain, t, p, count, continued)

    arithmetic = chain.arithmetic
    if not isinstance(arithmetic, InTiles):
        switch(rows, heights, in_vectors)
        return
    few = [count for count in heights if count <= arithmetic.few_rows]
    more = [count for count in heights if count > arithmetic.few_rows]
    if not more:
        switch(rows, few, in_vectors)
    elif not few:
        arithmetic.tile(chain, t, p, rows, more, continued)
    else:
        with T.If(rows > arithmetic.few_rows):
            with T.Then():
                arithmetic.tile(chain, t, p, rows, more, continued)
            with T.Else():
                switch(rows, few, in_vectors)


def _tile(chain: Chain, t: Tiling, p: Pass, rows: int, continued: bool) -> None:
    """scratch[:rows] (+)= x[start : start + rows, chunk] @ weight[chunk, panel], in registers.

    `continued`: sums of earlier chunks are in the scratch tile already.
    """
    emit = _plain if chain.arithmetic.promoted_every is None else _promoted
    emit(chain, t, p, rows, continued)


def _plain(chain: Chain, t: Tiling, p: Pass, rows: int, continued: bool) -> None:
    """Sums of the product's own type."""

    def first(r: int, at: ir.Expr) -> ir.Expr:
        begin = tirx.const(0, chain.arithmetic.sums)
        if p.begin is not None and rows > chain.arithmetic.few:
            begin = p.begin[p.column + at]
        return p.scratch[r, p.column + at] + begin if continued else begin

    def leave(r: int, at: ir.Expr, total: ir.Expr) -> None:
        T.buffer_store(p.scratch, total, [r, p.column + at])

    _sums(chain, t, p, rows, (0, chain.steps), first, leave)


def _promoted(chain: Chain, t: Tiling, p: Pass, rows: int, continued: bool) -> None:
    """The same with sums of a narrower type, which are added to those of the product after every few steps."""
    arithmetic, every = chain.arithmetic, chain.arithmetic.promoted_every
    assert every is not None, "sums of the product's own type are never promoted"
    zero = tirx.const(0, arithmetic.total)
    in_registers = arithmetic.in_registers(rows, chain.nr // t.lanes)
    if in_registers:
        kept = [T.alloc_buffer((chain.nr,), arithmetic.total) for _ in range(rows)]
        for r, buffer in enumerate(kept):
            with vectors(chain.nr, t.lanes) as at:
                T.buffer_store(buffer, p.scratch[r, p.column + at] if continued else zero, [at])
    elif not continued:
        with T.serial(rows) as r, T.serial(index(chain.nr // t.lanes)) as v, T.vectorized(index(t.lanes)) as lane:
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
    with T.serial(index(whole)) as block:
        block_of(block, every)
    if rest:
        block_of(index(whole), rest)
    for r in range(rows if in_registers else 0):
        with vectors(chain.nr, t.lanes) as at:
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
    zero = tirx.const(0, arithmetic.sums)
    # One buffer per row, in the default scope: only those, below 1 KiB, become stack slots, which LLVM
    # turns into registers. A larger one, or one of scope "local", would be heap memory.
    chains = arithmetic.chains(rows, chain.nr // lanes)
    acc = [[T.alloc_buffer((chain.nr,), arithmetic.sums) for _ in range(chains)] for _ in range(rows)]
    for r in range(rows):
        for number, buffer in enumerate(acc[r]):
            with vectors(chain.nr, lanes) as at:
                T.buffer_store(buffer, zero if number else first(r, at), [at])
    beside = T.alloc_buffer((chain.nr,), arithmetic.sums) if rows <= arithmetic.few else None
    if beside is not None:
        with vectors(chain.nr, lanes) as at:
            T.buffer_store(beside, zero, [at])
    place = (p.start, p.chunk, p.panel, chain.kc, chain.nr, lanes)
    marks = p.operands.marks
    tile = Tile(
        p.operands.x, chain.weight, acc, *place, marks=p.marks, marks_of_rows=marks, beside=beside, split=chain.split
    )
    unroll = t.unroll if count % t.unroll == 0 else 1
    for number, half in enumerate(arithmetic.walks(rows, chain.nr // lanes)):
        with T.serial(index(count // unroll)) as ko:
            # Short tiles wait for memory anyway: there the prefetches only take load slots (M = 1: 5 to 30 %).
            for q in range(t.prefetch if 2 * rows > t.mr and number == 0 else 0):
                done = ko if isinstance(begin, int) and begin == 0 else begin // unroll + ko
                prefetch(chain.weight_line(p.chunk, p.panel + 1, p.step * p.ahead + done * t.prefetch + q))
            k = ko * unroll
            k = k if isinstance(begin, int) and begin == 0 else begin + k
            arithmetic.steps(replace(tile, half=half), k, unroll)
    arithmetic.mend(tile, 0)
    arithmetic.settle(tile)
    for r in range(rows):
        with vectors(chain.nr, lanes) as at:
            leave(r, at, functools.reduce(operator.add, [buffer[at] for buffer in acc[r]]))


def each_column(chain: Chain, t: Tiling, panel: ir.Expr, emit: Callable[[ir.Expr, ir.Expr, int], None]) -> None:
    """emit(column in the panel, column of the matrix, width) over the panel's columns below n.

    `emit` is called inside the loops; width is the number of lanes its vector loop has. The columns of a panel that is
    cut are vectors, too, of fewer lanes at the end: LLVM makes vectors of a loop over single columns along the rows.
    """

    def whole() -> None:
        with T.unroll(index(chain.nr // t.lanes)) as v:
            emit(v * t.lanes, panel * chain.nr + v * t.lanes, t.lanes)

    def cropped(columns: int) -> None:
        for at, width in vectors_of(columns, t.lanes):
            emit(index(at), panel * chain.nr + at, width)

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
