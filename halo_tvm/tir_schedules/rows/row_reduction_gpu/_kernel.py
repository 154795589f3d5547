"""The launch that serves rows on a GPU: passes over a row by the threads of its group, which meet between them."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ....targets import WARP
from ...blocks import loads
from ...code.lanes import ceil_div, constant, index, loop, product, seq, simplify, unravel
from ...code.threads import (
    across_threads,
    across_warps,
    bound,
    distinct,
    is_row_access,
    registers,
    shared,
    unrolled,
    vector_copy,
)
from ...injective.nest import read_from, substituted
from ..stages import Rows, Stage, by_inverses, dtype_of, is_divisor, passes
from ._fit import RowThreads, is_input, is_local


class Kernel:
    """The statements of one launch."""

    def __init__(self, rows: Rows, decision: RowThreads) -> None:
        self.rows, self.d = rows, decision
        self.steps = 1  # of a thread along a row that is kept
        vectors = simplify(tirx.floordiv(rows.depth, index(decision.lanes)))
        self.whole = simplify(tirx.floordiv(vectors, index(decision.threads)))  # steps in which every thread has one
        self.vectors = vectors
        if decision.keep:
            self.steps = -(-constant(vectors) // decision.threads)
        size = self.steps * decision.lanes
        self.maps: dict[int, ir.Var] = {}  # stage -> its elements of this thread
        self.scalars: dict[int, ir.Var] = {}  # stage -> its value of the row
        self.inverse: dict[int, ir.Var] = {}  # scalars that are divided by
        self.scratch: dict[int, ir.Var] = {}
        for number, stage in enumerate(rows.stages):
            dtype = dtype_of(stage.target)
            if stage.depth is not None and stage.operation is None:
                self.maps[number] = registers(size, dtype, "row")
                continue
            self.scalars[number] = registers(1, dtype, "scalar")
            if is_divisor(stage, rows.stages):
                self.inverse[number] = registers(1, dtype, "inverse")
            if stage.operation is not None and decision.threads > WARP:
                self.scratch[number] = shared(decision.rows * decision.threads // WARP, dtype, "warps")
        self.sums = {
            n: registers(decision.lanes, dtype_of(s.target), "sums")
            for n, s in enumerate(rows.stages)
            if s.operation is not None
        }
        # Reads of whole vectors: (stage that reads, access, this thread's elements); what is the same is read once.
        self.reads: list[tuple[int, ir.TensorLoad, ir.Var]] = []
        for number, stage in enumerate(rows.stages):
            for access in self._vector_reads(stage):
                held = self._held(stage, access)
                if held is None:
                    held = registers(size, dtype_of(access.source), "read")
                self.reads.append((number, access, held))

    def body(self) -> tirx.Stmt:
        d, count = self.d, product(self.rows.extents)
        groups = ceil_div(count, d.rows)
        whole = d.rows == 1 or constant(count) is not None and constant(count) % d.rows == 0

        def in_block(block: Expr) -> list[tirx.Stmt]:
            def group(g: Expr) -> list[tirx.Stmt]:
                row = simplify(block * index(d.rows) + g)
                # The last groups may have no row of their own: they do the last one again, so that all threads of
                # a block reach its barriers and shuffles, and store nothing.
                mine = row if whole else simplify(tirx.min(row, count - index(1)))
                valid = None if whole else row < count
                at = unravel(mine, self.rows.extents)
                return [bound("threadIdx.x", d.threads, lambda t: self._row(at, valid, g, t))]

            return [bound("threadIdx.y", d.rows, group)]

        return bound("blockIdx.x", groups, in_block)

    def _row(self, at: Sequence[Expr], valid: Expr | None, group: Expr, thread: Expr) -> list[tirx.Stmt]:
        pools = (self.maps, self.scalars, self.inverse, self.scratch, self.sums)
        out = [tirx.AllocBuffer(b) for pool in pools for b in pool.values()]
        out += [tirx.AllocBuffer(b) for b in dict.fromkeys(buffer for _, _, buffer in self.reads)]
        done: list[ir.Var] = []  # what is in registers by now, and stays there
        for numbers in passes(self.rows):
            if self.rows.stages[numbers[0]].depth is None:
                (number,) = numbers
                value = self._value(number, at, None, None)
                out += self._finish(number, at, value, valid, thread)
                continue
            needed = numbers if self.d.keep else self._needed(numbers)
            out += self._pass(numbers, needed, at, valid, group, thread, done)
            if self.d.keep:
                done += [buffer for number, _, buffer in self.reads if number in needed]
        return out

    def _needed(self, numbers: Sequence[int]) -> list[int]:
        """The stages of a pass, and the maps of earlier passes that it makes again."""
        found, pending = set(numbers), list(numbers)
        while pending:
            stage = self.rows.stages[pending.pop()]
            for n in self.maps:
                if n not in found and any(x.source.same_as(self.rows.stages[n].target) for x in loads(stage.value)):
                    found.add(n)
                    pending.append(n)
        return sorted(found)

    def _pass(
        self,
        numbers: Sequence[int],
        needed: Sequence[int],
        at: Sequence[Expr],
        valid: Expr | None,
        group: Expr,
        thread: Expr,
        done: Sequence[ir.Var],
    ) -> list[tirx.Stmt]:
        d, reducing = self.d, [n for n in numbers if n in self.sums]
        out: list[tirx.Stmt] = []
        for n in reducing:
            start = self.rows.stages[n].start
            out.append(
                unrolled(
                    "lane", d.lanes, lambda lane, n=n, start=start: [tirx.BufferStore(self.sums[n], start, [lane])]
                )
            )

        def step(i: Expr) -> list[tirx.Stmt]:
            first = simplify((i * index(d.threads) + thread) * index(d.lanes))
            slot = simplify(i * index(d.lanes)) if d.keep else index(0)
            return self._step(numbers, needed, at, valid, first, slot, done)

        steps = constant(self.whole)
        if steps is None or not d.keep:
            if steps != 0:
                out.append(loop("step", self.whole, step))
        elif steps:
            out.append(unrolled("step", steps, step))
        rest = simplify(tirx.floormod(self.vectors, index(d.threads)))
        if constant(rest) != 0:
            out.append(tirx.IfThenElse(thread < rest, seq(step(self.whole)), None))
        for n in reducing:
            out += self._meet(n, group, thread)
            out += self._finish(n, at, self._total(n), valid, thread)
        return out

    def _step(
        self,
        numbers: Sequence[int],
        needed: Sequence[int],
        at: Sequence[Expr],
        valid: Expr | None,
        first: Expr,
        slot: Expr,
        done: Sequence[ir.Var],
    ) -> list[tirx.Stmt]:
        """One vector of a thread: what it reads, what it makes of it, what it writes."""
        d, out = self.d, []
        filled = list(done)
        for number, access, buffer in self.reads:
            if number not in needed or any(buffer.same_as(b) for b in filled):
                continue
            filled.append(buffer)

            stage = self.rows.stages[number]

            def source(lane: Expr, stage: Stage = stage, access: ir.TensorLoad = access) -> list[Expr]:
                return [self._at(stage, i, at, simplify(first + lane)) for i in access.indices]

            out.append(vector_copy(buffer, lambda lane: [simplify(slot + lane)], access.source, source, d.lanes))

        def element(lane: Expr) -> list[tirx.Stmt]:
            place, stores = simplify(slot + lane), []
            for n in needed:
                stage, value = self.rows.stages[n], self._value(n, at, simplify(first + lane), place)
                if stage.operation is None:
                    stores.append(tirx.BufferStore(self.maps[n], value, [place]))
                else:
                    total = self.sums[n]
                    stores.append(tirx.BufferStore(total, stage.operation(total[lane], value), [lane]))
            return stores

        out.append(unrolled("lane", d.lanes, element))
        stores = [s for n in numbers if n in self.maps and (s := self._write(n, at, first, slot)) is not None]
        if stores and valid is not None:
            stores = [tirx.IfThenElse(valid, seq(stores), None)]
        return out + stores

    def _write(self, n: int, at: Sequence[Expr], first: Expr, slot: Expr) -> tirx.Stmt | None:
        """A map's elements into memory; None for an intermediate."""
        stage = self.rows.stages[n]
        if is_local(stage, self.rows):
            return None
        lanes = self.d.lanes

        def to(lane: Expr) -> list[Expr]:
            return [self._at(stage, i, at, simplify(first + lane)) for i in stage.indices]

        def one(lane: Expr) -> list[tirx.Stmt]:
            return [tirx.BufferStore(stage.target, self.maps[n][simplify(slot + lane)], to(lane))]

        if is_row_access(stage.target, stage.indices, stage.depth, lanes):
            return vector_copy(stage.target, to, self.maps[n], lambda lane: [simplify(slot + lane)], lanes)
        return unrolled("lane", lanes, one)

    def _vector_reads(self, stage: Stage) -> list[ir.TensorLoad]:
        """The accesses of a stage that are read as vectors, before anything is computed.

        A load under a condition may stand for memory that is not there: then only rows of the very shape count.
        """
        if stage.depth is None:
            return []
        return [
            x
            for x in distinct(loads(stage.value))
            if is_input(x, self.rows)
            and is_row_access(x.source, x.indices, stage.depth, self.d.lanes)
            and self._is_inside(stage, x)
        ]

    def _is_inside(self, stage: Stage, load: ir.TensorLoad) -> bool:
        """Whether an access stays within its buffer at every element of every row."""
        known = dict(zip(stage.rows, self.rows.extents)) | {stage.depth: self.rows.depth}
        for at, size in zip(load.indices, load.source.shape):
            extent = next((e for v, e in known.items() if isinstance(at, ir.Var) and v.same_as(at)), None)
            if constant(at) == 0 or isinstance(at, ir.Var) and extent is None and constant(size) == 1:
                continue
            if extent is None or not tvm_ffi.structural_equal(extent, size):
                return False
        return True

    def _held(self, stage: Stage, access: ir.TensorLoad) -> ir.Var | None:
        """Where the elements of an access lie already; None when no stage before reads them."""
        mine = self._canonical(stage, access)
        for number, other, buffer in self.reads:
            same = access.source.same_as(other.source)
            if same and tvm_ffi.structural_equal(mine, self._canonical(self.rows.stages[number], other)):
                return buffer
        return None

    def _canonical(self, stage: Stage, access: ir.TensorLoad) -> ir.TensorLoad:
        """An access with the iterators of its block replaced by those of the first: equal where the elements are."""
        first = self.rows.stages[0]
        names = dict(zip(stage.rows, first.rows)) | {stage.depth: tirx.const(-1, "int64")}
        return substituted(access, names)

    def _value(self, n: int, at: Sequence[Expr], j: Expr | None, place: Expr | None) -> Expr:
        """What stage `n` stores or reduces at element `j` of row `at`, at `place` of this thread's arrays."""
        stage = self.rows.stages[n]
        held = [(access, buffer) for number, access, buffer in self.reads if number == n]
        values = self._places(stage, at, j)

        def load(node: ir.TensorLoad) -> Expr:
            for number, source in enumerate(self.rows.stages):
                if source.target.same_as(node.source):
                    return self.maps[number][place] if number in self.maps else self.scalars[number][0]
            return node

        value = stage.value if j is None else by_inverses(stage.value, self.rows, self.inverse)
        value = read_from(value, held, place)
        return substituted(tvm_ffi.structural_map(value, (ir.TensorLoad, load), order="post"), values)

    def _places(self, stage: Stage, at: Sequence[Expr], j: Expr | None) -> dict[ir.Var, Expr]:
        values: dict[ir.Var, Expr] = dict(zip(stage.rows, at))
        if stage.depth is not None and j is not None:
            values[stage.depth] = j
        return values | {v: index(0) for v in stage.block.vars if v not in values}

    def _at(self, stage: Stage, expr: Expr, at: Sequence[Expr], j: Expr) -> Expr:
        return simplify(substituted(expr, self._places(stage, at, j)))

    def _meet(self, n: int, group: Expr, thread: Expr) -> list[tirx.Stmt]:
        """All partial results of a row into the first lane of every thread."""
        total, operation, out = self.sums[n], self.rows.stages[n].operation, []
        for lane in range(1, self.d.lanes):
            out.append(tirx.BufferStore(total, operation(total[0], total[lane]), [index(0)]))
        if self.d.threads > WARP:
            return out + across_warps(total, operation, self.d.threads, thread, group, self.scratch[n])
        return out + across_threads(total, operation, self.d.threads)

    def _total(self, n: int) -> Expr:
        return self.rows.stages[n].begun(self.sums[n][0])

    def _finish(self, n: int, at: Sequence[Expr], value: Expr, valid: Expr | None, thread: Expr) -> list[tirx.Stmt]:
        """The scalar of a row, in every thread; one of them stores what is asked for."""
        stage, kept = self.rows.stages[n], self.scalars[n]
        out: list[tirx.Stmt] = [tirx.BufferStore(kept, value, [index(0)])]
        if n in self.inverse:
            out.append(tirx.BufferStore(self.inverse[n], tirx.const(1.0, dtype_of(kept)) / kept[0], [index(0)]))
        if not is_local(stage, self.rows):
            place = [self._at(stage, i, at, index(0)) for i in stage.indices]
            condition = thread.equal(0) if valid is None else tirx.And(thread.equal(0), valid)
            out.append(tirx.IfThenElse(condition, tirx.BufferStore(stage.target, kept[0], place), None))
        return out
