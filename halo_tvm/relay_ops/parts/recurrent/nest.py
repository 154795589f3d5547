"""The recurrence as a loop nest: right everywhere as it stands, and marked for the rule that makes it fast.

Loops carry the annotation `halo.loop`:
    directions   independent of each other
    blocks       of hidden units; within a phase of a step independent of each other
    rows         of the batch; independent. The body is one block whose buffers belong to the row alone
    depth        the sum over the state; its body is one loop of lanes per gate
    lanes        independent and contiguous in memory

    for direction:                                   (directions)
        state = initial
        for step in sequence:
            for phase of the cell:
                for block of units:                  (blocks)
                    for n in batch:                  (rows)
                        sums = gates of the input's product, ...   (lanes)
                        for k in hidden:             (depth)
                            for gate of the phase:
                                sums += state[k] * r'              (lanes)   bytes: four k a step, into int32
                        cell                         (lanes)
                        state' = ...                 (lanes)
            y = state                                (lanes)
The state has two halves, read and written in turns, so that blocks may run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import ir, s_tir, tirx
from tvm.ir import Expr

from ...linear_w8a8 import GROUP
from .cell import Options
from .phases import Phase, Unit, phases_of
from .rounding import grid_of, levels_of, rounding

LOOP = "halo.loop"
Body = Callable[[tirx.Var], tirx.Stmt | Sequence[tirx.Stmt]]


def nest(options: Options, block: int, given: Mapping[str, ir.Var], outs: Sequence[ir.Var]) -> tirx.Stmt:
    """Statement that computes `outs` (y, y_h[, y_c]) from the buffers `given` by name."""
    return _Nest(options, block, given, outs).build()


class _Nest:
    def __init__(self, options: Options, block: int, given: Mapping[str, ir.Var], outs: Sequence[ir.Var]) -> None:
        self.options, self.block, self.given, self.outs = options, block, given, outs
        self.blocks = -(-options.hidden // block)
        self.width = self.blocks * block
        self.dtype = str(outs[0].dtype)
        self.s, self.b = given["gates"].shape[0], given["gates"].shape[1]
        d = options.directions
        self.state = self._buffer("state", (d, 2, self.b, self.width))
        kept = [name for phase in phases_of(options) for name in phase.keeps]
        kept += ["rounded"] if options.rounds and not options.byte_weights else []
        self.kept = {name: self._buffer(name, (d, self.b, self.width)) for name in kept}
        self.levels: dict[str, ir.Var] = {}
        if options.byte_weights:  # the state in 8 bits, and the grid of each row
            depth = options.groups * GROUP
            self.levels = {name: self._buffer(name, (d, self.b)) for name in ("scale", "level")}
            self.levels["bytes"] = tirx.decl_buffer((d, self.b, depth), "uint8", name="bytes")

    def _buffer(self, name: str, shape: Sequence[Expr | int]) -> ir.Var:
        return tirx.decl_buffer(shape, self.dtype, name=name)

    def build(self) -> tirx.Stmt:
        body = _loop("direction", self.options.directions, self._direction, "directions")
        return _block(
            "recurrence", body, [self.state, *self.kept.values(), *self.levels.values()], {"halo.op": "recurrence"}
        )

    def _direction(self, d: tirx.Var) -> list[tirx.Stmt]:
        hidden = self.options.hidden
        states = {"initial_h": lambda n, j: (self.state, [d, _i(0), n, j])}
        if "cell" in self.kept:
            states["initial_c"] = lambda n, j: (self.kept["cell"], [d, n, j])

        def start(n: tirx.Var, j: tirx.Var) -> list[tirx.Stmt]:
            stores = []
            for name, place in states.items():
                buffer, indices = place(n, j)
                value = self._zero()
                if name in self.given:
                    value = tirx.if_then_else(j < _i(hidden), self.given[name][d, n, j], value)
                stores.append(tirx.BufferStore(buffer, value, indices))
            return stores

        def finish(n: tirx.Var, j: tirx.Var) -> list[tirx.Stmt]:
            last = [self.state[d, _half(self.s), n, j]]
            if "cell" in self.kept:
                last.append(self.kept["cell"][d, n, j])
            if "lengths" in self.given:
                last = [tirx.Select(self._length(n) > _i(0), value, self._zero()) for value in last]
            return [tirx.BufferStore(out, value, [d, n, j]) for out, value in zip(self.outs[1:], last)]

        return [
            _loop("n", self.b, lambda n: _loop("j", self.width, lambda j: start(n, j))),
            _loop("step", self.s, lambda step: self._step(d, step)),
            _loop("n", self.b, lambda n: _loop("j", hidden, lambda j: finish(n, j), "lanes")),
        ]

    def _step(self, d: tirx.Var, step: tirx.Var) -> list[tirx.Stmt]:
        statements = [_loop("n", self.b, lambda n: self._round(d, step, n))] if self.options.rounds else []
        offset = 0
        for phase in phases_of(self.options):
            statements.append(
                _loop(
                    "p",
                    self.blocks,
                    lambda p, phase=phase, offset=offset: _loop(
                        "n", self.b, lambda n: self._row(phase, offset, d, step, p, n), "rows"
                    ),
                    "blocks",
                )
            )
            offset += phase.count * self.block * self.options.hidden

        def copy(n: tirx.Var, j: tirx.Var) -> tirx.Stmt:
            value = self.state[d, _half(step + _i(1)), n, j]
            if "lengths" in self.given:
                value = tirx.Select(step < self._length(n), value, self._zero())
            return tirx.BufferStore(self.outs[0], value, [self._time(d, step, n), d, n, j])

        statements.append(_loop("n", self.b, lambda n: _loop("j", self.options.hidden, lambda j: copy(n, j), "lanes")))
        return statements

    def _round(self, d: tirx.Var, step: tirx.Var, n: tirx.Var) -> tirx.Stmt:
        """One row of the state on the 256 levels between its extremes (and 0): numbers, or bytes and their grid."""
        ends = [self._buffer(name, (1,)) for name in ("low", "high")]
        grid = [self._buffer(name, (1,)) for name in ("scale", "level")]
        zero = _i(0)

        def extremes(k: tirx.Var) -> list[tirx.Stmt]:
            value = self.state[d, _half(step), n, k]
            return [
                tirx.BufferStore(end, combine(end[zero], value), [zero])
                for end, combine in zip(ends, (tirx.min, tirx.max))
            ]

        def rounded(k: tirx.Var) -> tirx.Stmt:
            value = self.state[d, _half(step), n, k]
            if self.levels:
                level = tirx.Cast("uint8", levels_of(value, grid[0][zero], grid[1][zero]))
                return tirx.BufferStore(self.levels["bytes"], level, [d, n, k])
            return tirx.BufferStore(self.kept["rounded"], rounding(value, grid[0][zero], grid[1][zero]), [d, n, k])

        scale, level = grid_of(*(end[zero] for end in ends))
        body = [
            *(tirx.BufferStore(end, self._zero(), [zero]) for end in ends),
            _loop("k", self.options.hidden, extremes),
            tirx.BufferStore(grid[0], scale, [zero]),
            tirx.BufferStore(grid[1], level(grid[0][zero]), [zero]),
            _loop("k", self.options.hidden, rounded, "lanes"),
            *(tirx.BufferStore(self.levels[part.name], part[zero], [d, n]) for part in grid if self.levels),
        ]
        return _block("round", tirx.SeqStmt(body), [*ends, *grid])

    def _row(self, phase: Phase, offset: int, d: tirx.Var, step: tirx.Var, p: tirx.Var, n: tirx.Var) -> tirx.Stmt:
        """One row of a block of units: load, sum, work, store.

        The work touches buffers of the row only, at index j: TVM's elimination of common sub-expressions
        overlooks uses inside the Let expressions that activations become, and defines a shared index too late.
        """
        block, count = self.block, phase.count
        own = {name: self._buffer(name, (block,)) for name in phase.locals}

        def load(j: tirx.Var) -> list[tirx.Stmt]:
            values = {f"sum{gate}": self._first(phase, gate, d, step, p, n, j) for gate in range(count)}
            values |= {name: self._load(name, d, step, p, n, j) for name in phase.loads}
            return [tirx.BufferStore(own[name], value, [j]) for name, value in values.items()]

        def store(j: tirx.Var) -> list[tirx.Stmt]:
            at = [d, n, p * _i(block) + j]
            stores = []
            for name, value in phase.keeps.items():
                after = own[value][j]
                after = self._alive(step, n, after, own["cell"][j]) if name == "cell" else after
                stores.append(tirx.BufferStore(self.kept[name], after, at))
            if "new" in own:
                after = self._alive(step, n, own["new"][j], own["old"][j])
                stores.append(tirx.BufferStore(self.state, after, [d, _half(step + _i(1)), *at[1:]]))
            return stores

        integers = [tirx.decl_buffer((block,), "int32", name=f"total{g}") for g in range(count if self.levels else 0)]
        body = [
            _loop("j", block, load, "lanes"),
            *(
                self._sums_of_bytes(own, integers, d, p, n)
                if self.levels
                else [self._sums(phase, offset, own, d, step, p, n)]
            ),
            _loop("j", block, lambda j: phase.work(Unit(self.options, d, own, j)), "lanes"),
            _loop("j", block, store, "lanes"),
        ]
        return _block("row", tirx.SeqStmt(body), [*own.values(), *integers])

    def _sums(
        self, phase: Phase, offset: int, own: Mapping[str, ir.Var], d: Expr, step: Expr, p: Expr, n: Expr
    ) -> tirx.Stmt:
        """sums += state @ r'."""
        block, r = self.block, self.given["r"]

        def add(k: tirx.Var, gate: int, j: tirx.Var) -> tirx.Stmt:
            state = self.state[d, _half(step), n, k] if phase.reads == "state" else self.kept[phase.reads][d, n, k]
            sums = own[f"sum{gate}"]
            value = sums[j] + state * r[d, p, _i(offset) + k * _i(phase.count * block) + (_i(gate * block) + j)]
            return tirx.BufferStore(sums, value, [j])

        def depth(k: tirx.Var) -> list[tirx.Stmt]:
            return [_loop("j", block, lambda j, gate=gate: add(k, gate, j), "lanes") for gate in range(phase.count)]

        return _loop("k", self.options.hidden, depth, "depth")

    def _sums_of_bytes(
        self, own: Mapping[str, ir.Var], totals: Sequence[ir.Var], d: Expr, p: Expr, n: Expr
    ) -> list[tirx.Stmt]:
        """totals = bytes @ r' in integers, then sums += (totals - level * sums of columns) * scales."""
        block, levels, r = self.block, self.levels, self.given["r"]
        width = len(totals) * block

        def add(k: tirx.Var, gate: int, j: tirx.Var) -> tirx.Stmt:
            value = totals[gate][j]
            for i in range(GROUP):
                weight = r[d, p, (k * _i(width) + (_i(gate * block) + j)) * _i(GROUP) + _i(i)]
                level = levels["bytes"][d, n, k * _i(GROUP) + _i(i)]
                value = value + tirx.Cast("int32", level) * tirx.Cast("int32", weight)
            return tirx.BufferStore(totals[gate], value, [j])

        def depth(k: tirx.Var) -> list[tirx.Stmt]:
            return [_loop("j", block, lambda j, gate=gate: add(k, gate, j), "lanes") for gate in range(len(totals))]

        def scaled(j: tirx.Var) -> list[tirx.Stmt]:
            stores = []
            for gate, total in enumerate(totals):
                column = [d, p, _i(gate * block) + j]
                centred = tirx.Cast(self.dtype, total[j]) - levels["level"][d, n] * self.given["r_sums"][column]
                value = centred * (levels["scale"][d, n] * self.given["r_scale"][column])
                stores.append(tirx.BufferStore(own[f"sum{gate}"], own[f"sum{gate}"][j] + value, [j]))
            return stores

        zero = tirx.const(0, "int32")
        return [
            _loop("j", block, lambda j: [tirx.BufferStore(total, zero, [j]) for total in totals], "lanes"),
            _loop("k", self.options.groups, depth, "depth"),
            _loop("j", block, scaled, "lanes"),
        ]

    def _first(self, phase: Phase, gate: int, d: Expr, step: Expr, p: Expr, n: Expr, j: Expr) -> Expr:
        """What a gate's sum starts with."""
        if gate not in phase.separate:
            return self._wide(phase.first + gate, d, step, p, n, j)
        bias = self.given.get("recurrent_bias")
        return self._zero() if bias is None else bias[d, _i(0), p * _i(self.block) + j]

    def _load(self, name: str, d: Expr, step: Expr, p: Expr, n: Expr, j: Expr) -> Expr:
        """A value of a unit that exists before the phase."""
        column = p * _i(self.block) + j
        if name == "old":
            return self.state[d, _half(step), n, column]
        if name.startswith("peephole"):
            return self.given["peepholes"][d, _i(int(name[-1])), column]
        return self._wide(2, d, step, p, n, j) if name == "wide2" else self.kept[name][d, n, column]

    def _wide(self, gate: int, d: Expr, step: Expr, p: Expr, n: Expr, j: Expr) -> Expr:
        """The input's product of a gate."""
        first = ((d * _i(self.blocks) + p) * _i(self.options.cell.gates) + _i(gate)) * _i(self.block)
        return self.given["gates"][self._time(d, step, n), n, first + j]

    def _alive(self, step: Expr, n: Expr, value: Expr, old: Expr) -> Expr:
        """`value`, or `old` behind the end of the row's sequence."""
        return tirx.Select(step < self._length(n), value, old) if "lengths" in self.given else value

    def _length(self, n: Expr) -> Expr:
        """Steps of row n, within the sequence whatever the tensor says."""
        given = self.given["lengths"][n]
        given = given if str(self.given["lengths"].dtype) == "int64" else tirx.Cast("int64", given)
        return tirx.max(tirx.min(given, self.s), _i(0))

    def _time(self, d: Expr, step: Expr, n: Expr) -> Expr:
        """Where in the sequence a direction stands in a step; past the end of a row, in the padding."""
        if self.options.direction == "forward":
            return step
        if "lengths" in self.given:
            length = self._length(n)
            backward = tirx.Select(step < length, length - _i(1) - step, step)
        else:
            backward = self.s - _i(1) - step
        return backward if self.options.direction == "reverse" else tirx.Select(d == _i(0), step, backward)

    def _zero(self) -> Expr:
        return tirx.const(0.0, self.dtype)


def _i(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _half(step: Expr) -> Expr:
    """Which half of the state holds the values before `step`."""
    return tirx.floormod(step, _i(2))


def _loop(name: str, extent: Expr | int, body: Body, mark: str | None = None) -> tirx.Stmt:
    var = tirx.Var(name, "int64")
    inside = body(var)
    inside = tirx.SeqStmt(list(inside)) if isinstance(inside, list) and len(inside) > 1 else inside
    inside = inside[0] if isinstance(inside, list) else inside
    extent = _i(extent) if isinstance(extent, int) else extent
    notes = {LOOP: mark} if mark else {}
    return tirx.For(var, _i(0), extent, tirx.ForKind.SERIAL, inside, annotations=notes)


def _block(
    name: str, body: tirx.Stmt, buffers: Sequence[ir.Var], notes: Mapping[str, str] | None = None
) -> tvm.ir.Node:
    block = s_tir.SBlock([], [], [], name, body, alloc_buffers=list(buffers), annotations=dict(notes or {}))
    return s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
