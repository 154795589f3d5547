"""The loop nest of experts: pairs of a row and an expert are sorted by expert, then every expert multiplies its rows.

    count the pairs of each expert; place the pairs, expert by expert (order); cut each expert's rows into jobs
    copy the rows into that order                                              (parallel where they are many)
    parallel for task = (job, panel of its expert):
        for chunk of k, for tile of up to mr rows: the k loop of the GEMM, sums in registers
        for each row: add the bias, store it where its pair belongs
An expert that no row is sent to is never read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from tvm import ir, s_tir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import index, kept
from ...code.nests import root_block
from ...code.tile_registers import release
from ..gemm.amx import InTiles
from ..gemm.arithmetic import Operands, each_row, part_at, parts_of
from ..gemm.chain import Chain
from ..gemm.tile import Pass, each_column, tiles_of
from ..gemm.tiling import Tiling
from ._problem import Problem

_EXPERT, _FIRST, _ROWS = range(3)  # what a job is


@dataclass(frozen=True)
class _Sorted:
    """The pairs by expert: `order` [pairs], jobs [pairs, 3], and how many jobs there are, [1]."""

    order: ir.Var
    jobs: ir.Var
    count: ir.Var


def build(problem: Problem, tiling: Tiling) -> s_tir.SBlockRealize:
    """The whole nest as a root block."""
    with root_block() as builder:
        found = _sort(problem, tiling.block_rows)
        rows = _gathered(problem, found, tiling.lanes)
        operands = problem.arithmetic.prepare(
            rows, problem.pairs, problem.chunks * problem.kc, tiling.lanes, problem.beside_weight
        )
        _tasks(problem, tiling, found, operands, _chain(problem, rows))
    return builder.get()


def _sort(problem: Problem, block_rows: int) -> _Sorted:
    """Counting sort of the pairs; every expert's are cut into jobs of up to `block_rows`."""
    experts, top, pairs = problem.experts, problem.top, problem.pairs
    ends = T.alloc_buffer((experts + 1,), "int64")  # first the counts, then where each expert's pairs go next
    order = T.alloc_buffer((pairs,), "int64")
    jobs = T.alloc_buffer((pairs, 3), "int64")
    count = T.alloc_buffer((1,), "int64")

    def expert_of(pair: ir.Expr) -> ir.Expr:
        found = tirx.Cast("int64", problem.ids[pair // top, pair % top])
        return tirx.max(tirx.min(found, index(experts - 1)), index(0))

    with T.serial(index(experts + 1)) as e:
        T.buffer_store(ends, index(0), [e])
    with T.serial(pairs) as pair:
        place = expert_of(pair) + 1
        T.buffer_store(ends, ends[place] + 1, [place])
    T.buffer_store(count, index(0), [0])
    with T.serial(index(experts)) as e:
        number = kept(ends[e + 1])
        with T.serial((number + (block_rows - 1)) // block_rows) as block:
            for field, value in (
                (_EXPERT, e),
                (_FIRST, ends[e] + block * block_rows),
                (_ROWS, tirx.min(index(block_rows), number - block * block_rows)),
            ):
                T.buffer_store(jobs, value, [count[0], index(field)])
            T.buffer_store(count, count[0] + 1, [0])
        T.buffer_store(ends, ends[e] + number, [e + 1])
    with T.serial(pairs) as pair:
        at = kept(expert_of(pair))
        T.buffer_store(order, pair, [ends[at]])
        T.buffer_store(ends, ends[at] + 1, [at])
    return _Sorted(order, jobs, count)


def _gathered(problem: Problem, found: _Sorted, lanes: int) -> ir.Var:
    """The rows of x in the order of the pairs."""
    k = problem.chunks * problem.kc
    rows = T.alloc_buffer((problem.pairs, k), "float32", align=64)

    def copy(row: ir.Expr) -> None:
        pair = kept(found.order[row])
        for width, first, number in parts_of(k, lanes):
            with T.serial(index(number)) as v:
                at = part_at(first, v, width)
                T.buffer_store(rows, problem.x[(*problem.at_pair(pair, problem.x), at)], [row, at])

    each_row(problem.pairs, k, copy)
    return rows


def _chain(problem: Problem, rows: ir.Var) -> Chain:
    """The same as a packed GEMM, of which one expert has `panels`."""
    return Chain(
        rows,
        problem.weight,
        (problem.out,),
        problem.arithmetic,
        (),
        (problem.out,),
        problem.pairs,
        problem.n,
        problem.chunks,
        problem.panels,
        problem.kc,
        problem.nr,
        problem.beside_weight,
    )


def _tasks(problem: Problem, t: Tiling, found: _Sorted, operands: Operands, chain: Chain) -> None:
    most = min(t.block_rows, problem.few or t.block_rows)
    heights = list(range(min(t.mr, most), 0, -1))
    chunked = problem.chunks > 1
    with T.parallel(found.count[0] * problem.panels) as task:
        # In memory, not in bindings: lowering would inline the expressions into every index.
        job = T.alloc_buffer((4,), "int64")
        for field in (_EXPERT, _FIRST, _ROWS):
            T.buffer_store(job, found.jobs[task // problem.panels, field], [field])
        T.buffer_store(job, task % problem.panels, [3])
        panel = job[3]
        tiles = t.tiles(job[_ROWS])
        most_tiles = max(t.tiles(most), t.tiles(min(most, t.few)))
        scratch = T.alloc_buffer((t.mr, most_tiles * chain.nr), chain.arithmetic.total, align=64)
        of_expert = job[_EXPERT] * problem.panels + panel
        unpacked = chain.arithmetic.unpack(chain, t, of_expert, job[_ROWS])
        if chunked:
            with T.serial(index(t.mr)) as r, T.serial(tiles * chain.nr // t.lanes) as v:
                zero = tirx.Broadcast(tirx.const(0, chain.arithmetic.total), t.lanes)
                T.buffer_store(scratch, zero, [r, tirx.Ramp(v * t.lanes, index(1), t.lanes)])

        def each_tile(body: Callable[[ir.Expr, ir.Expr, ir.Expr], None]) -> None:
            with T.serial(tiles) as step:
                start, rows = t.tile_of(job[_ROWS], step, tiles)
                body(step, kept(job[_FIRST] + start), kept(rows))

        with T.serial(index(problem.chunks)) if chunked else nullcontext(0) as chunk:

            def multiply(step: ir.Expr, start: ir.Expr, rows: ir.Expr) -> None:
                pass_ = Pass(
                    operands, scratch, step * chain.nr, chunk, of_expert, start, step, index(0), unpacked=unpacked
                )
                tiles_of(chain, t, pass_, rows, heights, chunked)

            each_tile(multiply)

        def store(step: ir.Expr, start: ir.Expr, rows: ir.Expr) -> None:
            with T.serial(rows) as r:
                where = problem.at_pair(kept(found.order[start + r]), problem.out)

                def finish(at: ir.Expr, column: ir.Expr, width: int) -> None:
                    with T.vectorized(index(width)) as lane:
                        value = scratch[r, step * chain.nr + at + lane]
                        if operands.row_factor is not None:
                            value = value * operands.row_factor[start + r]
                        if problem.bias is not None:
                            value = value + problem.bias[job[_EXPERT], column + lane]
                        T.buffer_store(problem.out, value, [*where, column + lane])

                each_column(chain, t, panel, finish)

        each_tile(store)
        if isinstance(chain.arithmetic, InTiles):
            release(scratch)
