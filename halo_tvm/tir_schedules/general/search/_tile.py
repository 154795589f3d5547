"""One tile of a reduction: totals in registers, from their beginning through every step to the stages behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...blocks import loads
from ...code.lanes import constant, index, joined, loop, simplify, vectorised
from ...code.lets import hoist_lets
from ...injective.nest import substituted
from ...rows.stages import start_of
from ._branches import branched
from ._decision import NONE, Tiling
from ._masks import ready
from ._program import Reduction, Total

Registers = Mapping[ir.Var, ir.Var]  # a buffer of the function -> the vector that holds it


@dataclass
class Tile:
    """`starts` says where the tile begins on each axis. A register holds `lanes` elements; see `Tiling`."""

    reduction: Reduction
    tiling: Tiling
    starts: Mapping[ir.Var, Expr]
    registers: list[list[Registers]] = field(default_factory=list)  # of each row and vector

    def statements(self) -> list[tirx.Stmt]:
        return self._partial() if self.tiling.is_partial(self.reduction) else self._columns()

    def _columns(self) -> list[tirx.Stmt]:
        """Vectors along an axis: each lane is an element of its own, and steps come in their order."""
        out = self._begin(lambda total: total.start)
        varying = self._varying()
        places = {axis: start for axis, start in self.starts.items() if not any(axis.same_as(v) for v in varying)}
        totals = [replace(total, update=substituted(total.update, places)) for total in self.reduction.totals]
        body = branched(totals, varying, self._rows)
        for var, length in reversed([*zip(self.reduction.steps, self.reduction.lengths)]):
            body = [_loop(var, length, body)]
        out += body
        for row in range(self.tiling.height):
            for u in range(self.tiling.vectors):
                out += self._finish(row, u, self.registers[row][u], self.tiling.lanes)
        return out

    def _rows(self, totals: Sequence[Total]) -> list[tirx.Stmt]:
        """One more step of every vector of the tile, what only a row decides before each row."""
        var = self._vector(0)[0]
        inner = [] if var is None else [var]
        out: list[tirx.Stmt] = []
        for row in range(self.tiling.height):
            places = self._row(row)
            here = [replace(total, update=substituted(total.update, places)) for total in totals]
            out += branched(
                here, inner, lambda of, row=row: [s for u in range(self.tiling.vectors) for s in self._step(of, row, u)]
            )
        return out

    def _varying(self) -> list[ir.Var]:
        """The axes along which the vectors of the tile differ."""
        numbers = (self.tiling.vector, self.tiling.row)
        return [self.reduction.axes[n] for n in numbers if n != NONE and n < len(self.reduction.axes)]

    def _partial(self) -> list[tirx.Stmt]:
        """Vectors along a step: each lane is a partial result, and they are joined at the end."""
        t, r = self.tiling, self.reduction
        at = t.vector - len(r.axes)
        var, length = r.steps[at], r.lengths[at]
        out = self._begin(lambda total: start_of(total.operation, total.start, str(total.start.ty.dtype)))
        unit, size = t.lanes * t.vectors, constant(length)
        body: list[tirx.Stmt] = []

        def vector(start: Expr, u: int, lanes: int) -> list[tirx.Stmt]:
            totals = [
                [replace(x, update=substituted(x.update, self._row(row))) for x in r.totals] for row in range(t.height)
            ]
            return [s for row, of in enumerate(totals) for s in self._step(of, row, u, (var, start), lanes)]

        def block(b: Expr) -> list[tirx.Stmt]:
            return [s for u in range(t.vectors) for s in vector(simplify(b * unit + index(u * t.lanes)), u, t.lanes)]

        if size is None or size >= unit:
            body.append(loop("block", simplify(tirx.floordiv(length, index(unit))), block))
        done = simplify(tirx.floordiv(length, index(unit)) * unit)
        singles = simplify(tirx.floordiv(length - done, index(t.lanes)))
        if constant(singles) != 0:
            body.append(loop("vector", singles, lambda n: vector(simplify(done + n * t.lanes), 0, t.lanes)))
        done, width = simplify(done + singles * t.lanes), t.lanes
        if size is None:
            body.append(loop("rest", simplify(length - done), lambda n: vector(simplify(done + n), 0, 1)))
        while size is not None and width > 1:
            width //= 2
            if (size - constant(done)) >= width:
                body += vector(done, 0, width)
                done = simplify(done + width)
        others = [pair for n, pair in enumerate(zip(r.steps, r.lengths)) if n != at]
        for step, extent in reversed(others):
            body = [_loop(step, extent, body)]
        out += body
        for row in range(t.height):
            out += self._joined(row)
            out += self._finish(row, 0, self.registers[row][0], 1)
        return out

    def _begin(self, value: Callable[[Total], Expr]) -> list[tirx.Stmt]:
        """Registers of every row and vector with their first values."""
        t = self.tiling
        out: list[tirx.Stmt] = []
        for _ in range(t.height):
            self.registers.append([])
            for _ in range(t.vectors):
                made = {}
                for total in self.reduction.totals:
                    register = tirx.decl_buffer([index(t.lanes)], str(total.buffer.dtype), name="total")
                    made[total.buffer] = register
                    out.append(tirx.AllocBuffer(register))
                    first = value(total)
                    out.append(vectorised(t.lanes, lambda lane, r=register, v=first: tirx.BufferStore(r, v, [lane])))
                self.registers[-1].append(made)
        return out

    def _step(
        self, totals: Sequence[Total], row: int, u: int, at: tuple[ir.Var, Expr] | None = None, lanes: int = 0
    ) -> list[tirx.Stmt]:
        """One more step of the totals of one vector; of the first `lanes` lanes where partial results end."""
        registers = self.registers[row][u]
        lanes = lanes or self.tiling.lanes
        var, start = at or self._vector(u)
        out: list[tirx.Stmt] = []
        new: list[tuple[ir.Var, ir.Var]] = []
        for total in totals:
            lane = tirx.Var("lane", "int64")
            before, value = ready(total.update, var, start, lanes, lane) if var is not None else ([], total.update)
            out += before
            held = registers[total.buffer]
            if len(totals) > 1:  # each needs what the others were
                held = tirx.decl_buffer([index(lanes)], str(total.buffer.dtype), name="next")
                out.append(tirx.AllocBuffer(held))
                new.append((registers[total.buffer], held))
            out.append(_vector(lane, lanes, tirx.BufferStore(held, hoist_lets(_read(value, registers, lane)), [lane])))
        for register, held in new:
            out.append(vectorised(lanes, lambda lane, r=register, h=held: tirx.BufferStore(r, h[lane], [lane])))
        return out

    def _joined(self, row: int) -> list[tirx.Stmt]:
        """All partial results of a row into the first lane of its first vector: vectors first, then halves."""
        out = []
        for total in self.reduction.totals:
            parts = [(made[total.buffer], 0) for made in self.registers[row]]
            out += joined(parts, total.operation, self.tiling.lanes)
            first = parts[0][0]
            out.append(tirx.BufferStore(first, total.operation(total.start, first[0]), [index(0)]))
        return out

    def _finish(self, row: int, u: int, registers: Registers, lanes: int) -> list[tirx.Stmt]:
        """The stages behind the totals of one vector, and what of both goes to memory."""
        r = self.reduction
        var, start = (None, None) if self.tiling.is_partial(r) else self._vector(u)
        held = dict(registers)
        out: list[tirx.Stmt] = []

        def store(buffer: ir.Var, indices: tuple[Expr, ...]) -> None:
            if not any(buffer.same_as(s) for s in r.stored):
                return
            lane = tirx.Var("lane", "int64")
            place = [substituted(i, self._row(row)) for i in indices]
            if var is not None:
                place = [simplify(substituted(i, {var: simplify(start + lane)})) for i in place]
            out.append(_vector(lane, lanes, tirx.BufferStore(buffer, held[buffer][lane], place)))

        for total in r.totals:
            store(total.buffer, total.indices)
        for stage in r.stages:
            lane = tirx.Var("lane", "int64")
            value = substituted(stage.value, self._row(row))
            before, value = ready(value, var, start, lanes, lane) if var is not None else ([], value)
            register = tirx.decl_buffer([index(lanes)], str(stage.buffer.dtype), name="stage")
            value = hoist_lets(_read(value, held, lane))
            out += [
                *before,
                tirx.AllocBuffer(register),
                _vector(lane, lanes, tirx.BufferStore(register, value, [lane])),
            ]
            held[stage.buffer] = register
            store(stage.buffer, stage.indices)
        return out

    def _vector(self, u: int) -> tuple[ir.Var | None, Expr | None]:
        """The iterator of the vectors and where vector `u` begins."""
        if self.tiling.vector == NONE:
            return None, None
        var = self.reduction.axes[self.tiling.vector]
        return var, simplify(self.starts[var] + index(u * self.tiling.lanes))

    def _row(self, row: int) -> dict[ir.Var, Expr]:
        """The axes of one row of the tile, the one in the vectors excepted."""
        places = dict(self.starts)
        if self.tiling.row != NONE:
            axis = self.reduction.axes[self.tiling.row]
            places[axis] = simplify(places[axis] + index(row))
        if self.tiling.vector != NONE and not self.tiling.is_partial(self.reduction):
            del places[self.reduction.axes[self.tiling.vector]]
        return places


def _read(value: Expr, registers: Registers, lane: Expr) -> Expr:
    """`value` with what is in registers read from there."""

    def load(node: ir.TensorLoad) -> Expr:
        found = next((r for buffer, r in registers.items() if buffer.same_as(node.source)), None)
        return node if found is None else found[lane]

    return tvm_ffi.structural_map(value, (ir.TensorLoad, load), order="post") if loads(value) else value


def _loop(var: ir.Var, extent: Expr, body: list[tirx.Stmt]) -> tirx.Stmt:
    return tirx.For(var, index(0), extent, tirx.ForKind.SERIAL, body[0] if len(body) == 1 else tirx.SeqStmt(body))


def _vector(lane: ir.Var, lanes: int, statement: tirx.Stmt) -> tirx.Stmt:
    kind = tirx.ForKind.VECTORIZED if lanes > 1 else tirx.ForKind.SERIAL
    return tirx.For(lane, index(0), index(lanes), kind, statement)
