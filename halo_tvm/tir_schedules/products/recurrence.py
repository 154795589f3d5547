"""The time loop of recurrent layers: sums in registers, rows of the batch side by side, blocks over threads.

Serves
    functions of `halo.recurrence` (attribute `halo.call`), whose loops carry the annotation `halo.loop`;
    any sequence, batch and hidden size, symbolic or not
Declines
    other operators; blocks of hidden units that are not whole vectors of the target
Before -> after
    lanes    for j                    ->   vectors, unrolled; exact tails
    rows     for n: load; for k: ..   ->   for n0 in batch / rows: load x rows; for k: every vector of r' loaded once
                                           for all rows; then the batch's rest row by row
    depth    for k: gates             ->   per run of gates whose sums fit the registers: for k: gates
                                           bytes: four k a step, as `gemm/w8a8.py` multiplies them
    directions or blocks              ->   parallel, where a step is worth starting threads
The rule never asks which cell it is: what the loops compute is left as it stands.
Measured
    docs/kernels/recurrence.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import Expr

from ...errors import Declined
from ...targets import Target
from ..blocks import loads, written_out
from ..code.lanes import constant, index, loop, seq, simplify, vector_loop
from ..rule import Numbers, Rule
from .gemm.served import byte_product
from .gemm.w8a8 import GROUP, W8A8

MARK = "halo.loop"
# Starting threads costs about a microsecond a step; one core takes some 25,000 weights in that time.
WORTH_THREADS = 1 << 18  # an LSTM of 256 units, measured: 1110 us for 100 steps on two threads, 1640 on one


_PARALLEL = ("no", "directions", "blocks")


@dataclass(frozen=True)
class Decision:
    """How one recurrence runs."""

    rows: int  # rows of the batch whose sums are kept together
    parallel: str  # one of _PARALLEL


class RecurrenceLoop(Rule[Decision]):
    """Recurrences as vectors and register tiles."""

    name = "recurrence"
    Decision = Decision
    domains = {
        "rows": Numbers(1, 16),
        "parallel": _PARALLEL,
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        call = _call(func)
        lanes = _lanes(func, target)
        block = int(call["block"])
        if block % lanes:
            raise Declined(f"serves blocks of whole vectors of {lanes}, this function has blocks of {block}")
        gates, r = func.params[:2]
        directions, blocks, weights = (int(dim) for dim in r.shape)
        hidden = int(call["hidden"])
        depth, heavier = (-(-hidden // GROUP) * GROUP, GROUP) if str(r.dtype) == "int8" else (hidden, 1)
        vectors = weights // depth // lanes
        batch = constant(gates.shape[1])
        # Two registers stay for weights and a broadcast state, the others hold sums.
        rows = max(1, min(4, (target.isa.vector_registers - 2) // vectors, batch or 4))
        work = blocks * weights * (batch or 1) // heavier
        parallel = "no"
        if target.cores == 1:
            pass
        elif directions > 1 and (target.cores <= directions or work < WORTH_THREADS):
            parallel = "directions"
        elif blocks > 1 and work >= WORTH_THREADS:
            parallel = "blocks"
        return Decision(rows, parallel)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        first = self.default(func, target)
        choices = [replace(first, parallel=kind) for kind in _PARALLEL]
        return tuple(dict.fromkeys([first, *choices, *(replace(first, rows=rows) for rows in (1, 2, 3, 4))]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        registers = target.isa.vector_registers
        body = _Rewriter(_lanes(func, target), registers, decision, byte_product(target.isa)).rewrite(func.body)
        # Copies of a loop share its variable until here.
        return tirx.transform.ConvertSSA()(tvm.IRModule({"main": written_out(func, body)}))["main"]


def _call(func: tirx.PrimFunc) -> dict[str, object]:
    call = (func.attrs or {}).get("halo.call")
    if call is None or str(call["op"]) != "recurrence":
        raise Declined(f"serves halo.recurrence, this function is {'of no operator' if call is None else call['op']}")
    return call


def _lanes(func: tirx.PrimFunc, target: Target) -> int:
    bits = 64 if str(func.params[0].dtype) == "float64" else 32
    return target.isa.vector_bits // bits


@dataclass(frozen=True)
class _Rewriter:
    lanes: int
    registers: int
    decision: Decision
    bytes: W8A8

    def rewrite(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """`stmt` with every marked loop in its final form."""
        if isinstance(stmt, tirx.SeqStmt):
            return seq([self.rewrite(part) for part in stmt.seq])
        if isinstance(stmt, s_tir.SBlockRealize):
            return _with_body(stmt, self.rewrite(stmt.block.body))
        if not isinstance(stmt, tirx.For):
            return stmt
        mark = str(stmt.annotations.get(MARK, ""))
        if mark == "lanes":
            return self._vectors([stmt])
        if mark == "rows":
            return self._rows(stmt)
        kind = tirx.ForKind.PARALLEL if mark and mark == self.decision.parallel else stmt.kind
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, kind, self.rewrite(stmt.body))

    def _vectors(self, loops: Sequence[tirx.For]) -> tirx.Stmt:
        """Loops of lanes with one extent, vector by vector side by side."""
        extent = loops[0].extent
        size = constant(extent)
        unroll = size // self.lanes if size is not None and size <= 8 * self.lanes else 4

        def body(j: Expr, _slot: Expr | None) -> list[tirx.Stmt]:
            return [part for each in loops for part in _statements(_at(each.body, {each.loop_var: j}))]

        return seq(vector_loop(index(0), extent, self.lanes, max(1, unroll), body))

    def _rows(self, rows: tirx.For) -> tirx.Stmt:
        """Tiles of rows, then what is left of the batch row by row."""
        count, var = self.decision.rows, rows.loop_var
        tiles = simplify(tirx.floordiv(rows.extent, index(count)))
        left = simplify(tirx.floormod(rows.extent, index(count)))
        out = []
        if constant(tiles) != 0:
            out.append(
                loop(
                    "tile",
                    tiles,
                    lambda tile: [
                        self._tile(rows.body, [{var: simplify(tile * index(count) + index(m))} for m in range(count)])
                    ],
                )
            )
        if constant(left) != 0:
            done = simplify(tiles * index(count))
            out.append(loop("n", left, lambda n: [self._tile(rows.body, [{var: simplify(done + n)}])]))
        return seq(out)

    def _tile(self, row: s_tir.SBlockRealize, places: Sequence[dict[tirx.Var, Expr]]) -> tirx.Stmt:
        """The row's block for several rows at once, each with buffers of its own."""
        buffers, bodies = [], []
        for place in places:
            own = {old: _copy(old) for old in row.block.alloc_buffers}
            buffers += own.values()
            bodies.append(_at(row.block.body, {**place, **own}))
        out = []
        for parts in zip(*(_statements(body) for body in bodies)):
            if str(parts[0].annotations.get(MARK, "")) == "depth":
                out += self._depth(parts)
            else:
                out += [self.rewrite(part) for part in parts]
        block = row.block
        tile = s_tir.SBlock([], [], [], block.name_hint, seq(out), alloc_buffers=buffers)
        return s_tir.SBlockRealize([], tirx.const(True, "bool"), tile)

    def _depth(self, parts: Sequence[tirx.For]) -> list[tirx.Stmt]:
        """The sums of all rows, for so many gates at a time as keep their sums in registers."""
        gates = [_statements(part.body) for part in parts]
        whole = self._bytes if str(gates[0][0].body.buffer.dtype) == "int32" else self._vectors
        vectors = int(gates[0][0].extent) // self.lanes
        together = max(1, (self.registers - 2) // (vectors * len(parts)))
        out = []
        for first in range(0, len(gates[0]), together):
            k = tirx.Var("k", "int64")
            body = []
            for gate in range(first, min(first + together, len(gates[0]))):
                loops = [
                    tirx.For(
                        own[gate].loop_var,
                        own[gate].min,
                        own[gate].extent,
                        own[gate].kind,
                        _at(own[gate].body, {part.loop_var: k}),
                    )
                    for own, part in zip(gates, parts)
                ]
                body.append(whole(loops))
            out.append(tirx.For(k, index(0), parts[0].extent, tirx.ForKind.SERIAL, seq(body)))
        return out

    def _bytes(self, loops: Sequence[tirx.For]) -> tirx.Stmt:
        """Sums of four products of bytes each, vector by vector, by what the instruction set has for them."""
        lanes, out = self.lanes, []
        for first in range(0, int(loops[0].extent), lanes):
            for each in loops:
                store = _at(each.body, {each.loop_var: index(first)})
                state, weight = _first_loads(store.value)
                four = tirx.BufferLoad(state.source, [*state.indices[:-1], tirx.Ramp(state.indices[-1], 1, GROUP)])
                x = tirx.Broadcast(tirx.reinterpret("int32", four), lanes)
                where = tirx.Ramp(simplify(weight.indices[-1]), 1, GROUP * lanes)
                w = tirx.BufferLoad(weight.source, [*weight.indices[:-1], where])
                at = [tirx.Ramp(index(first), 1, lanes)]
                total = self.bytes.add(tirx.BufferLoad(store.buffer, at), x, w, lanes)
                out.append(tirx.BufferStore(store.buffer, total, at))
        return seq(out)


def _first_loads(value: Expr) -> tuple[tirx.BufferLoad, tirx.BufferLoad]:
    """The first bytes of the state and of the weights that a sum of products reads; three more follow each."""
    first = {str(load.source.dtype): load for load in reversed(loads(value))}
    return first["uint8"], first["int8"]


def _statements(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


def _with_body(realize: s_tir.SBlockRealize, body: tirx.Stmt) -> s_tir.SBlockRealize:
    old = realize.block
    block = s_tir.SBlock(
        [], [], [], old.name_hint, body, alloc_buffers=list(old.alloc_buffers), annotations=dict(old.annotations)
    )
    return s_tir.SBlockRealize([], tirx.const(True, "bool"), block)


def _copy(buffer: ir.Var) -> ir.Var:
    return tirx.decl_buffer(buffer.shape, str(buffer.dtype), name=buffer.name)


def _at(stmt: tirx.Stmt, values: dict[ir.Var, Expr]) -> tirx.Stmt:
    """`stmt` with variables, buffers among them, replaced."""

    def variable(node: ir.Var) -> Expr:
        return next((value for var, value in values.items() if var.same_as(node)), node)

    return tvm_ffi.structural_map(stmt, (ir.Var, variable), order="post")
