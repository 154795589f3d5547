"""Functions of functions, choices between choices, and long chains of names are stored in between.

Before -> after
    y[i] = let a = .. in let t = f(a) in g(t, t)
        ->   s[i] = let a = .. in f(a);  y[i] = g(s[i], s[i])
    y[i] = select(c < 127, c, 127), c being made of choices itself
        ->   s[i] = c;  y[i] = select(s[i] < 127, s[i], 127)
    s being local numbers, one for each lane of a vectorised i
Why
    Wherever TVM simplifies, and in code generation again, it puts the value of a `Let` in the place of its variable.
    Each function uses its argument several times, so a chain of them multiplies what TVM looks at: tanh(log1p(exp(x)))
    took 32 s to compile, and tanh of tanh of tanh of tanh did not end. Numbers that are clipped are written twice, so
    that numbers which are quantised three times in a row are written 64 times. A number that is loaded stays one, and
    LLVM makes a register of it.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ..tir_schedules.blocks import length
from ..tir_schedules.code.lets import chain_of, has_lets, under_lets, with_own_names
from ._bfloat16 import COMPARISONS, is_bfloat16

_CHOICES = 4  # more than a number has that is quantised once
_LONG, _LONGEST = 500, 1_000_000  # expressions of one name, and of a store, written out: 3 s of compilation
# Of a bfloat16, whose choices are no stages: TVM's simplifier goes through each again for every choice around it.
_LONGEST_NARROW = 5_000


class Stages:
    """What was marked as an argument to be stored, in one function."""

    def __init__(self) -> None:
        self._marked: set[tirx.Var] = set()

    def closed(self, argument: Expr) -> Expr:
        """`argument`, marked where it is made of functions that have become polynomials."""
        if not has_lets(argument):
            return argument
        var = self._mark(argument)
        return tirx.Let(var, argument, var)

    def chosen(self, choice: tirx.Select) -> Expr:
        """`choice`, with a mark on what it compares and gives, where that is made of choices."""
        compared, values = choice.condition, (choice.true_value, choice.false_value)
        if not isinstance(compared, COMPARISONS):
            return choice
        sides = (compared.a, compared.b)
        for given in values:
            if is_bfloat16(given) or not _is_chosen(given):
                continue
            equal = [tvm_ffi.structural_equal(side, given) for side in sides]
            if any(equal):
                var = self._mark(given)
                compared = type(compared)(*(var if same else side for same, side in zip(equal, sides)))
                return tirx.Let(var, given, tirx.Select(compared, *(var if v is given else v for v in values)))
        return choice

    def cut(self, value: Expr) -> Expr:
        """`value`, whose lets are one chain at its head: those that TVM would write out at length are marked."""
        whole: dict[ir.Var, int] = {}  # how long each is, written out
        stored: dict[ir.Var, int] = {}  # and where the long ones are stored
        longs = []
        chain, last = chain_of(value)
        for var, named in chain:
            if var in self._marked:
                whole[var] = stored[var] = 1
                continue
            whole[var], stored[var] = length(named, whole), length(named, stored)
            if stored[var] > _LONG and str(var.ty.dtype) != "bool":
                stored[var] = 1
                longs.append(var)
        longest = _LONGEST_NARROW if is_bfloat16(last) else _LONGEST
        if sum(whole.values()) + length(last, whole) > longest:
            self._marked.update(longs)
        return value

    def _mark(self, argument: Expr) -> tirx.Var:
        var = tirx.Var("stage", argument.ty)
        self._marked.add(var)
        return var

    def in_lanes(self, loop: tirx.For) -> tirx.Stmt:
        """A vectorised `loop` with its stages, of a number for each lane."""
        if not self._marked or loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
            return loop
        made: list[tirx.Stmt] = []
        lane = loop.loop_var - loop.min
        body = self._staged(loop.body, int(loop.extent.value), lane, made)
        loop = tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations, loop.step
        )
        return tirx.SeqStmt([*made, loop]) if made else loop

    def elsewhere(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """`func` with the stages of the stores that no vectorised loop has."""
        return func.with_body(self._staged(func.body, 1, tirx.IntImm("int32", 0), None)) if self._marked else func

    def _staged(self, stmt: tirx.Stmt, extent: int, lane: Expr, made: list[tirx.Stmt] | None) -> tirx.Stmt:
        """`stmt` with every store in stages, whose buffers are made by statements in `made`, else beside the store."""

        def staged(store: tirx.BufferStore) -> tirx.Stmt:
            return self._of(store, extent, lane, made)

        return tvm_ffi.structural_map(stmt, (tirx.BufferStore, staged), order="post")

    def _of(self, store: tirx.BufferStore, extent: int, lane: Expr, made: list[tirx.Stmt] | None) -> tirx.Stmt:
        """`store`, whose lets are one chain at its head, behind a store of each marked argument among them."""
        known = _Names()
        statements: list[tirx.Stmt] = []
        chain, last = chain_of(store.value)
        for var, named in chain:
            if var in self._marked:
                dtype, _, lanes = str(named.ty.dtype).partition("x")
                buffer = tirx.decl_buffer((int(lanes or 1) * extent,), dtype, "stage", scope="local")
                at = tirx.Ramp(lane * int(lanes), tirx.const(1, str(lane.ty.dtype)), int(lanes)) if lanes else lane
                (statements if made is None else made).append(tirx.AllocBuffer(buffer))
                statements.append(tirx.BufferStore(buffer, known.under(named), [at]))
                named = buffer[at]
            known.add(var, named)
        if not statements:
            return store
        return tirx.SeqStmt([*statements, tirx.BufferStore(store.buffer, known.under(last), store.indices)])


class _Names:
    """The names of a chain so far, and which others each is made of."""

    def __init__(self) -> None:
        self._values: dict[tirx.Var, Expr] = {}
        self._made_of: dict[tirx.Var, list[tirx.Var]] = {}

    def add(self, var: tirx.Var, value: Expr) -> None:
        self._made_of[var] = self._read(value)
        self._values[var] = value

    def under(self, value: Expr) -> Expr:
        """`value` under those names that it needs, with variables of its own."""
        waiting, needed = self._read(value), set()
        while waiting:
            var = waiting.pop()
            if var not in needed:
                needed.add(var)
                waiting += self._made_of[var]
        return with_own_names(under_lets([(v, named) for v, named in self._values.items() if v in needed], value))

    def _read(self, value: Expr) -> list[tirx.Var]:
        found: list[tirx.Var] = []
        tvm_ffi.structural_walk(value, (tirx.Var, found.append), order="post")
        return [var for var in found if var in self._values]


def _is_chosen(value: Expr) -> bool:
    """Whether `value` is made of so many choices that it is not to be written twice."""
    found: list[tirx.Select] = []
    tvm_ffi.structural_walk(value, (tirx.Select, found.append), order="pre")
    return len(found) >= _CHOICES
