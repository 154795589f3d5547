"""The steps of a cell: which products with the state it takes, and what it computes from them.

A phase is one product `state @ r'` for a run of gates and the element-wise work behind it. All units of
a phase are done before the next begins: GRU's reset gate is needed whole before the hidden gate's product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tvm import ir, tirx
from tvm.ir import Expr

from ....extremes import at_least, at_most
from .activations import CELL_ACTIVATIONS
from .cell import Options


@dataclass(frozen=True)
class Phase:
    """Gates first .. first + count - 1 of the cell, and what is done with their sums.

    The work reads and writes values of one unit by name: `sum0`, `sum1`, ... of the phase's gates, `loads`,
    and whatever it makes itself (`makes`). Loads: "old", the state before the step; "wide2", the input's product of
    gate 2; "cell", "reset" and "update", kept between phases or steps; "peephole0" .. "peephole2".
    """

    first: int
    count: int
    work: Callable[[Unit], list[tirx.Stmt]]
    loads: tuple[str, ...] = ("old",)
    makes: tuple[str, ...] = ("new",)
    keeps: Mapping[str, str] = field(default_factory=dict)  # kept value -> the name it has in the unit
    reads: str = "state"  # what is multiplied: "state", "reset" (GRU's reset state) or "rounded" (the state in 8 bits)
    separate: tuple[int, ...] = ()  # gates whose sum starts with the recurrent bias, not with the input's product

    @property
    def locals(self) -> tuple[str, ...]:
        """Names of all values of a unit."""
        return (*(f"sum{gate}" for gate in range(self.count)), *self.loads, *self.makes)


@dataclass(frozen=True)
class Unit:
    """One hidden unit of one row in one step: its values, each an element of a buffer of the row's own."""

    options: Options
    direction: Expr
    buffers: Mapping[str, ir.Var]
    j: Expr

    def __getitem__(self, name: str) -> Expr:
        return self.buffers[name][self.j]

    def put(self, name: str, value: Expr) -> tirx.Stmt:
        """Store a value of the unit."""
        return tirx.BufferStore(self.buffers[name], value, [self.j])

    def activate(self, place: int, x: Expr) -> Expr:
        """The cell's activation f, g or h (0, 1, 2) of x; `clip` bounds the arguments of f and g."""
        o = self.options
        if o.clip and place < 2:
            x = _bounded(x, o.clip)

        def apply(direction: int) -> Expr:
            name, alpha, beta = o.activation(direction, place)
            return CELL_ACTIVATIONS[name].tir(x, tirx.const(alpha, x.ty.dtype), tirx.const(beta, x.ty.dtype))

        if o.directions == 1 or o.activation(0, place) == o.activation(1, place):
            return apply(0)
        return tirx.Select(self.direction == tirx.const(0, "int64"), apply(0), apply(1))

    def one_minus(self, x: Expr) -> Expr:
        return tirx.const(1.0, x.ty.dtype) - x


def _bounded(x: Expr, limit: float) -> Expr:
    """x in [-limit, limit]."""
    return at_least(at_most(x, tirx.const(limit, x.ty.dtype)), tirx.const(-limit, x.ty.dtype))


def phases_of(options: Options) -> tuple[Phase, ...]:
    """The phases of a cell, in order."""
    if options.cell.name == "lstm":
        peepholes = ("peephole0", "peephole1", "peephole2") if "peepholes" in options.present else ()
        reads = "rounded" if options.rounds else "state"
        return (Phase(0, 4, _lstm, ("old", "cell", *peepholes), ("new", "next"), {"cell": "next"}, reads),)
    if options.cell.name == "rnn":
        return (Phase(0, 1, _rnn),)
    if "linear_before_reset" in options.flags:
        return (Phase(0, 3, _gru_at_once, ("old", "wide2"), separate=(2,)),)
    return (
        Phase(0, 2, _gru_gates, makes=(), keeps={"update": "sum0", "reset": "sum1"}),
        Phase(2, 1, _gru_hidden, loads=("old", "update"), reads="reset"),
    )


def _lstm(u: Unit) -> list[tirx.Stmt]:
    """Gates i, o, f, c; peepholes i, o, f."""
    i, o, f = u["sum0"], u["sum1"], u["sum2"]
    if "peephole0" in u.buffers:
        i, f, o = i + u["peephole0"] * u["cell"], f + u["peephole2"] * u["cell"], o + u["peephole1"] * u["next"]
    after = u["sum2"] * u["cell"] + u["sum0"] * u["sum3"]
    return [
        u.put("sum0", u.activate(0, i)),
        u.put("sum2", u.one_minus(u["sum0"]) if "input_forget" in u.options.flags else u.activate(0, f)),
        u.put("sum3", u.activate(1, u["sum3"])),
        u.put("next", _bounded(after, u.options.cell_clip) if u.options.cell_clip else after),
        u.put("sum1", u.activate(0, o)),
        u.put("new", u["sum1"] * u.activate(2, u["next"])),
    ]


def _rnn(u: Unit) -> list[tirx.Stmt]:
    return [u.put("new", u.activate(0, u["sum0"]))]


def _gru_at_once(u: Unit) -> list[tirx.Stmt]:
    """Gates z, r, h; the hidden gate's product is taken before the reset."""
    return [
        u.put("sum0", u.activate(0, u["sum0"])),
        u.put("sum1", u.activate(0, u["sum1"])),
        u.put("sum2", u.activate(1, u["wide2"] + u["sum1"] * u["sum2"])),
        u.put("new", u.one_minus(u["sum0"]) * u["sum2"] + u["sum0"] * u["old"]),
    ]


def _gru_gates(u: Unit) -> list[tirx.Stmt]:
    return [u.put("sum0", u.activate(0, u["sum0"])), u.put("sum1", u.activate(0, u["sum1"]) * u["old"])]


def _gru_hidden(u: Unit) -> list[tirx.Stmt]:
    return [
        u.put("sum0", u.activate(1, u["sum0"])),
        u.put("new", u.one_minus(u["update"]) * u["sum0"] + u["update"] * u["old"]),
    ]
