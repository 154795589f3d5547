"""Rows that are reduced along the last axis and mapped: softmax, norms, mean, sum, max, with fused neighbours.

Serves
    functions whose blocks share their leading spatial loops (the rows) and have at most one loop more
    (the depth): reductions over it, maps over it, and scalars of a row
Before -> after
    for rows: for depth: a; for rows: for depth: b   ->   parallel for runs of rows: for row: a over depth; b over depth
    reductions keep `unroll` vectors of partial sums and are added up once per row; maps and reductions
    that need no result of each other share one pass; intermediates live in one row, or in a register
Declines
    see `_analyse`: no reduction; loops that differ; several reduced axes; a reduced axis that is not
    the operand's last; reductions of several values (argmax); a stage that reads another row
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ..errors import Declined
from ..targets import Target
from ._blocks import Block, blocks, is_scheduled, loads, uses
from ._lanes import (
    constant,
    in_parallel_when_large,
    index,
    is_var,
    loop,
    parallel_rows,
    product,
    replace_body,
    unravel,
    vector_loop,
)
from ._rule import Rule, check_range

_SERIAL = (1 << 12, 1 << 13, 1 << 15)  # elements below which one thread may do it all
_OPERATIONS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True)
class RowDecision:
    """How rows are cut into vectors and runs."""

    lanes: int  # elements of one vector
    unroll: int  # vectors in flight: partial sums of a reduction
    tasks: int  # at most so many parallel runs of rows
    serial_below: int  # elements; less work than this runs on one thread


@dataclass(frozen=True)
class _Stage:
    """One block: a map or a reduction over the depth, or a scalar of the row."""

    block: Block
    rows: tuple[ir.Var, ...]  # iterators of the row
    depth: ir.Var | None
    operation: type | None  # of a reduction
    value: Expr  # what is stored, or what is reduced
    init: Expr | None
    target: ir.Var  # buffer written
    indices: tuple[Expr, ...]
    position: int | None  # of the depth among the indices


@dataclass(frozen=True)
class _Rows:
    extents: tuple[Expr, ...]
    depth: Expr
    stages: tuple[_Stage, ...]
    local: tuple[ir.Var, ...]  # intermediates


class RowReduction(Rule[RowDecision]):
    """Softmax, norms and reductions along the last axis."""

    name = "row_reduction"
    Decision = RowDecision

    def default(self, func: tirx.PrimFunc, target: Target) -> RowDecision:
        _analyse(func)
        # A launch costs 0.75 us, about 8000 elements of these cheap loops. Four vectors hide the latency of an
        # addition; eight runs per core balance rows well enough and cost nothing.
        return RowDecision(lanes=target.lanes_f32, unroll=4, tasks=8 * target.cores, serial_below=8192)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[RowDecision]:
        base, cores = self.default(func, target), target.cores
        values = itertools.product((base.lanes, base.lanes // 2), (1, 2, 4, 8), (cores, 4 * cores, 8 * cores), _SERIAL)
        return tuple(dict.fromkeys([base, *(RowDecision(*fields) for fields in values)]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: RowDecision) -> tirx.PrimFunc:
        check_range(decision, lanes=(1, 64), unroll=(1, 16), tasks=(1, 1 << 16), serial_below=(0, 1 << 31))
        rows = _analyse(func)
        work = product([*rows.extents, rows.depth])

        def emit(parallel: bool) -> tirx.Stmt:
            body = _Body(rows, decision)
            return parallel_rows(product(rows.extents), decision.tasks, parallel, body.row, body.allocate)

        return replace_body(func, in_parallel_when_large(work, decision.serial_below, emit))


def _analyse(func: tirx.PrimFunc) -> _Rows:
    """The rows of `func`, or `Declined` with the reason."""
    if is_scheduled(func):
        raise Declined("row_reduction: the function is scheduled already")
    found = blocks(func)
    reducing = [b for b in found if "R" in b.kinds]
    if not reducing:
        raise Declined("row_reduction: no block reduces anything")
    first = reducing[0]
    if first.kinds.count("R") != 1:
        raise Declined(f"row_reduction: one reduced axis is served, found {first.kinds.count('R')}")
    extents = tuple(e for e, kind in zip(first.extents, first.kinds) if kind == "S" and constant(e) != 1)
    depth = first.extents[first.kinds.index("R")]
    local = tuple(func.body.block.alloc_buffers)
    stages: list[_Stage] = []
    for block in found:
        stages.append(_stage(block, extents, depth))
    outputs = [s.target for s in stages]
    for stage in stages:
        _check_loads(stage, stages, outputs)
    return _Rows(extents, depth, tuple(stages), local)


def _stage(block: Block, extents: tuple[Expr, ...], depth: Expr) -> _Stage:
    if not block.plain or set(block.kinds) - {"S", "R"}:
        raise Declined("row_reduction: a block has a predicate, or loops that are not its iterators")
    if block.store is None:
        raise Declined("row_reduction: a block stores several values (argmax and the like)")
    core = [(v, e, k) for v, e, k in zip(block.vars, block.extents, block.kinds) if k == "R" or constant(e) != 1]
    rows = core[: len(extents)]
    if [k for _, _, k in rows] != ["S"] * len(extents) or not all(_same(e, x) for (_, e, _), x in zip(rows, extents)):
        raise Declined("row_reduction: the blocks do not share their leading loops")
    rest = core[len(extents) :]
    if len(rest) > 1 or (rest and not _same(rest[0][1], depth)):
        raise Declined("row_reduction: a block has other loops than the rows and the reduced axis")
    var = rest[0][0] if rest else None
    store = block.store
    operation, value, init = None, store.value, None
    if rest and rest[0][2] == "R":
        operation, value, init = _reduction(block)
    position = next((i for i, at in enumerate(store.indices) if var is not None and is_var(at, var)), None)
    return _Stage(
        block, tuple(v for v, _, _ in rows), var, operation, value, init, store.buffer, tuple(store.indices), position
    )


def _reduction(block: Block) -> tuple[type, Expr, Expr]:
    """Operation, operand and initial value of a reduction block."""
    store = block.store
    assert store is not None and isinstance(block.node.init, tirx.BufferStore), (
        "a reduction stores one value and has an init"
    )
    value = store.value
    if not isinstance(value, _OPERATIONS):
        raise Declined(f"row_reduction: reduces by {type(value).__name__}, served are Add, Mul, Max and Min")
    for mine, other in ((value.a, value.b), (value.b, value.a)):
        if isinstance(mine, ir.TensorLoad) and mine.source.same_as(store.buffer):
            return type(value), other, block.node.init.value
    raise Declined("row_reduction: the update of a reduction is not `total = total op value`")


def _check_loads(stage: _Stage, stages: Sequence[_Stage], outputs: Sequence[ir.Var]) -> None:
    """Loads of earlier stages must be of the same row; a reduction must run along its operands' last axis."""
    for load in loads(stage.value):
        writer = next((s for s in stages if s.target.same_as(load.source)), None)
        if writer is not None:
            for at, mine in zip(load.indices, writer.indices):
                if not _same_place(at, mine, stage, writer):
                    raise Declined(
                        "row_reduction: a stage reads another row, or another place of the row, than it is at"
                    )
        if stage.operation is not None and stage.depth is not None:
            for at in load.indices[:-1]:
                if uses(at, stage.depth):
                    raise Declined("row_reduction: the reduced axis is not the last axis of its operand")


def _same_place(at: Expr, mine: Expr, reader: _Stage, writer: _Stage) -> bool:
    for row_here, row_there in zip(reader.rows, writer.rows):
        if is_var(mine, row_there):
            return is_var(at, row_here)
    if writer.depth is not None and is_var(mine, writer.depth):
        return reader.depth is not None and is_var(at, reader.depth)
    # What is left are iterators of extent one, whose place is zero whatever the reader calls it.
    return isinstance(mine, ir.Var) or constant(mine) is not None and constant(at) == constant(mine)


class _Body:
    """Builds the statements of one row; a new one for every copy, so that buffers are not shared."""

    def __init__(self, rows: _Rows, decision: RowDecision) -> None:
        self.rows = rows
        self.decision = decision
        size = constant(rows.depth)
        self.unroll = decision.unroll if size is None else max(1, min(decision.unroll, size // decision.lanes))
        self.groups = _groups(rows)
        self.buffers: dict[int, ir.Var] = {}  # stage number -> row buffer, or register of a scalar
        self.partial: dict[int, ir.Var] = {}
        self.rest: dict[int, ir.Var] = {}
        self.inverse: dict[int, ir.Var] = {}  # scalars that are divided by
        for number, stage in enumerate(rows.stages):
            dtype = _dtype(stage.target)
            if any(stage.target.same_as(b) for b in rows.local):
                shape = [rows.depth] if stage.operation is None and stage.depth is not None else [index(1)]
                self.buffers[number] = tirx.decl_buffer(
                    shape, dtype, name="row" if len(shape) and shape[0] is rows.depth else "scalar"
                )
                if _is_divisor(stage, rows.stages):
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
            partial, neutral = self.partial[n], self._neutral(n)
            for u in range(self.unroll):
                out.append(
                    _lanes(lanes, lambda lane, u=u: tirx.BufferStore(partial, neutral, [index(u * lanes) + lane]))
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
            out += self._combine(n)
            out += self._finish(n, at, self._reduced(n))
        return out

    def _combine(self, n: int) -> list[tirx.Stmt]:
        """All partial results into the first lane: vectors first, then halves of a vector."""
        partial, operation, lanes = self.partial[n], self.rows.stages[n].operation, self.decision.lanes
        out = []
        count = self.unroll
        while count > 1:
            half = count // 2
            for u in range(half):
                other = (u + count - half) * lanes
                out.append(
                    _lanes(lanes, lambda lane, u=u, other=other: tirx.BufferStore(
                        partial, operation(partial[index(u * lanes) + lane], partial[index(other) + lane]),
                        [index(u * lanes) + lane]))
                )  # fmt: skip
            count -= half
        width = lanes
        while width > 1:
            width //= 2
            out.append(_lanes(width, lambda lane, width=width: tirx.BufferStore(
                partial, operation(partial[lane], partial[index(width) + lane]), [lane])))  # fmt: skip
        return out

    def _reduced(self, n: int) -> Expr:
        stage = self.rows.stages[n]
        out = self.partial[n][0]
        if constant(self.rows.depth) is None:
            out = stage.operation(out, self.rest[n][0])
        if not _is_neutral(stage.init, stage.operation) and stage.operation in (tirx.Add, tirx.Mul):
            out = stage.operation(stage.init, out)
        return out

    def _neutral(self, n: int) -> Expr:
        """What every lane starts with; max and min may start with the block's own initial value in each."""
        stage = self.rows.stages[n]
        if stage.operation in (tirx.Add, tirx.Mul):
            return tirx.const(0 if stage.operation is tirx.Add else 1, _dtype(stage.target))
        return stage.init

    def _finish(self, n: int, at: Sequence[Expr], value: Expr) -> list[tirx.Stmt]:
        """Store the scalar of a row, and its reciprocal when a later pass divides by it."""
        out = [self._store(n, at, index(0), value)]
        if n in self.inverse:
            one = tirx.const(1.0, _dtype(self.inverse[n]))
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

        def divide(node: tirx.Div) -> Expr:
            for number, inverse in self.inverse.items():
                if isinstance(node.b, ir.TensorLoad) and node.b.source.same_as(self.buffers[number]) and j is not None:
                    return node.a * inverse[0]
            return node

        value = self._here(stage, at, j, stage.value)
        return tvm_ffi.structural_map(value, (tirx.Div, divide), order="post") if self.inverse else value

    def _here(self, stage: _Stage, at: Sequence[Expr], j: Expr | None, expr: Expr) -> Expr:
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


def _groups(rows: _Rows) -> list[list[int]]:
    """Stages that share one pass over the row: none needs a scalar that another of them makes."""
    groups: list[list[int]] = []
    for number, stage in enumerate(rows.stages):
        made = [rows.stages[n] for n in groups[-1]] if groups else []
        waits = any(
            w.depth is None or w.operation is not None and any(w.target.same_as(x.source) for x in loads(stage.value))
            for w in made
        )
        if groups and not waits and stage.depth is not None:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _is_divisor(stage: _Stage, stages: Sequence[_Stage]) -> bool:
    """Whether a map over the depth divides by this float32 scalar: one division per row replaces one per element."""
    if stage.depth is not None and stage.operation is None or _dtype(stage.target) != "float32":
        return False
    found: list[tirx.Div] = []
    for other in stages:
        if other.depth is not None:
            tvm_ffi.structural_walk(other.value, (tirx.Div, found.append), order="post")
    return any(isinstance(d.b, ir.TensorLoad) and d.b.source.same_as(stage.target) for d in found)


def _is_neutral(value: Expr, operation: type) -> bool:
    neutral = 0 if operation is tirx.Add else 1
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) and value.value == neutral


def _lanes(width: int, store) -> tirx.Stmt:
    return loop("lane", width, lambda lane: [store(lane)], tirx.ForKind.VECTORIZED)


def _same(a: Expr, b: Expr) -> bool:
    return tvm_ffi.structural_equal(a, b)


def _dtype(buffer: ir.Var) -> str:
    return str(buffer.dtype)
