"""Rows that are reduced along the last axis and mapped: softmax, norms, mean, sum, max, with fused neighbours.

Serves
    functions whose blocks share their leading spatial loops (the rows) and have at most one loop more
    (the depth): reductions over it, maps over it, and scalars of a row
Before -> after
    for rows: for depth: a; for rows: for depth: b   ->   parallel for runs of rows: for row: a over depth; b over depth
    reductions keep `unroll` vectors of partial sums and are added up once per row; maps and reductions
    that need no result of each other share one pass; intermediates live in one row, or in a register
Numerics
    x / s becomes x * (1 / s) for a scalar s of the row: infinite where s is below 2**-128 in size (subnormal)
Declines
    see `rows_of`: no reduction; loops that differ; several reduced axes; a reduced axis that is not
    the operand's last; reductions of several values (argmax); a stage that reads another row;
    one reduction of a few elements: rule `search` has rows side by side in a vector's lanes
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...errors import Declined
from ...targets import Target
from ..code.lanes import (
    constant,
    in_parallel_when_large,
    index,
    joined,
    parallel_rows,
    product,
    replace_body,
    unravel,
    vector_loop,
    vectorised,
)
from ..rule import Numbers, Rule
from .stages import Rows, Stage, by_inverses, dtype_of, is_divisor, passes, rows_of

_FEW = 8  # elements of a row, of which 256 x 1,000 windows of two took 420 us here and 89 side by side
_SERIAL = (1 << 12, 1 << 13, 1 << 15)  # elements below which one thread may do it all


@dataclass(frozen=True)
class RowDecision:
    """How rows are cut into vectors and runs."""

    lanes: int  # elements of one vector
    unroll: int  # vectors in flight: partial sums of a reduction
    tasks: int  # at most so many parallel runs of rows
    serial_below: int  # elements; less work than this runs on one thread


class RowReduction(Rule[RowDecision]):
    """Softmax, norms and reductions along the last axis."""

    name = "row_reduction"
    Decision = RowDecision
    domains = {
        "lanes": Numbers(1, 64, powers=True),
        "unroll": Numbers(1, 16),
        "tasks": Numbers(1, 1 << 16),
        "serial_below": Numbers(0, 1 << 31),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> RowDecision:
        rows = rows_of(func)
        of_depth = [stage for stage in rows.stages if stage.depth is not None]
        if len(of_depth) == 1 and 1 < (constant(rows.depth) or 0) <= _FEW:
            raise Declined(f"one reduction of {constant(rows.depth)} elements: rows are better side by side")
        # A launch costs 0.75 us, about 8000 elements of these cheap loops. Four vectors hide the latency of an
        # addition; eight runs per core balance rows well enough and cost nothing.
        return RowDecision(lanes=target.lanes_f32, unroll=4, tasks=8 * target.cores, serial_below=8192)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[RowDecision]:
        base, cores = self.default(func, target), target.cores
        values = itertools.product((base.lanes, base.lanes // 2), (1, 2, 4, 8), (cores, 4 * cores, 8 * cores), _SERIAL)
        return tuple(dict.fromkeys([base, *(RowDecision(*fields) for fields in values)]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: RowDecision) -> tirx.PrimFunc:
        self.check(decision)
        rows = rows_of(func)
        work = product([*rows.extents, rows.depth])

        def emit(parallel: bool) -> tirx.Stmt:
            body = _Body(rows, decision)
            return parallel_rows(product(rows.extents), decision.tasks, parallel, body.row, body.allocate)

        return replace_body(func, in_parallel_when_large(work, decision.serial_below, emit))


class _Body:
    """Builds the statements of one row; a new one for every copy, so that buffers are not shared."""

    def __init__(self, rows: Rows, decision: RowDecision) -> None:
        self.rows = rows
        self.decision = decision
        size = constant(rows.depth)
        self.unroll = decision.unroll if size is None else max(1, min(decision.unroll, size // decision.lanes))
        self.groups = passes(rows)
        self.buffers: dict[int, ir.Var] = {}  # stage number -> row buffer, or register of a scalar
        self.partial: dict[int, ir.Var] = {}
        self.rest: dict[int, ir.Var] = {}
        self.inverse: dict[int, ir.Var] = {}  # scalars that are divided by
        for number, stage in enumerate(rows.stages):
            dtype = dtype_of(stage.target)
            if any(stage.target.same_as(b) for b in rows.local):
                shape = [rows.depth] if stage.operation is None and stage.depth is not None else [index(1)]
                self.buffers[number] = tirx.decl_buffer(
                    shape, dtype, name="row" if len(shape) and shape[0] is rows.depth else "scalar"
                )
                if is_divisor(stage, rows.stages):
                    self.inverse[number] = tirx.decl_buffer([index(1)], dtype, name="inverse")
            if stage.operation is not None:
                self.partial[number] = tirx.decl_buffer([index(self.unroll * decision.lanes)], dtype, name="partial")
                self.rest[number] = tirx.decl_buffer([index(1)], dtype, name="rest")

    def allocate(self) -> list[tirx.Stmt]:
        """Allocations, made once per run of rows."""
        pools = (self.buffers, self.partial, self.rest, self.inverse)
        return [tirx.AllocBuffer(buffer) for pool in pools for buffer in pool.values()]

    def row(self, row: Expr) -> list[tirx.Stmt]:
        at = unravel(row, self.rows.extents)
        out: list[tirx.Stmt] = []
        for group in self.groups:
            if self.rows.stages[group[0]].depth is None:
                out += self._finish(group[0], at, self._value(group[0], at, None))
            else:
                out += self._pass(group, at)
        return out

    def _pass(self, group: Sequence[int], at: Sequence[Expr]) -> list[tirx.Stmt]:
        reductions = [n for n in group if self.rows.stages[n].operation is not None]
        out: list[tirx.Stmt] = []
        lanes = self.decision.lanes
        for n in reductions:
            partial, neutral = self.partial[n], self.rows.stages[n].start
            for u in range(self.unroll):
                out.append(
                    vectorised(lanes, lambda lane, u=u: tirx.BufferStore(partial, neutral, [index(u * lanes) + lane]))
                )
            out.append(tirx.BufferStore(self.rest[n], neutral, [index(0)]))

        def body(j: Expr, slot: Expr | None) -> list[tirx.Stmt]:
            stores: list[tirx.Stmt] = []
            for n in group:
                stage, value = self.rows.stages[n], self._value(n, at, j)
                if stage.operation is None:
                    stores.append(self._store(n, at, j, value))
                else:
                    buffer, place = (self.rest[n], index(0)) if slot is None else (self.partial[n], slot)
                    stores.append(tirx.BufferStore(buffer, stage.operation(buffer[place], value), [place]))
            return stores

        out += vector_loop(index(0), self.rows.depth, lanes, self.unroll, body)
        for n in reductions:
            vectors = [(self.partial[n], u * lanes) for u in range(self.unroll)]
            out += joined(vectors, self.rows.stages[n].operation, lanes)
            out += self._finish(n, at, self._reduced(n))
        return out

    def _reduced(self, n: int) -> Expr:
        stage = self.rows.stages[n]
        out = self.partial[n][0]
        if constant(self.rows.depth) is None:
            out = stage.operation(out, self.rest[n][0])
        return stage.begun(out)

    def _finish(self, n: int, at: Sequence[Expr], value: Expr) -> list[tirx.Stmt]:
        """Store the scalar of a row, and its reciprocal when a later pass divides by it."""
        out = [self._store(n, at, index(0), value)]
        if n in self.inverse:
            one = tirx.const(1.0, dtype_of(self.inverse[n]))
            out.append(tirx.BufferStore(self.inverse[n], one / self.buffers[n][0], [index(0)]))
        return out

    def _store(self, n: int, at: Sequence[Expr], j: Expr, value: Expr) -> tirx.Stmt:
        stage = self.rows.stages[n]
        if n in self.buffers:
            return tirx.BufferStore(self.buffers[n], value, [j])
        return tirx.BufferStore(stage.target, value, [self._here(stage, at, j, i) for i in stage.indices])

    def _value(self, n: int, at: Sequence[Expr], j: Expr | None) -> Expr:
        """The value of stage `n` at row `at` and element `j`, reading rows and registers."""
        stage = self.rows.stages[n]
        value = stage.value if j is None else by_inverses(stage.value, self.rows, self.inverse)
        return self._here(stage, at, j, value)

    def _here(self, stage: Stage, at: Sequence[Expr], j: Expr | None, expr: Expr) -> Expr:
        values = dict(zip(stage.rows, at))
        if stage.depth is not None:
            values[stage.depth] = j
        ones = {v: index(0) for v in stage.block.vars if v not in values}
        values |= ones

        def load(node: ir.TensorLoad) -> Expr:
            for number, buffer in self.buffers.items():
                source = self.rows.stages[number]
                if source.target.same_as(node.source):
                    return buffer[node.indices[source.position]] if source.position is not None else buffer[0]
            return node

        return tvm_ffi.structural_map(expr, ((ir.TensorLoad, load), (ir.Var, lambda v: values.get(v, v))), order="post")
