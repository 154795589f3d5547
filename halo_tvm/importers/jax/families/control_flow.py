"""Branches and loops. A condition that is known is decided now, and a short scan is written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te

from ...loops import Stepped, allocate_rows, counted_loop, if_then_else, while_loop
from ...meaning.builder import expr_shape
from ...meaning.sizes import Dim, prim
from .._layers import recurrent
from .._primitive import Primitive, dtype_name
from .._registry import converter
from .._values import Value
from .calls import entered
from .movement import reshaped, size_value

_UNROLLED_STEPS = 32
_UNROLLED_EQUATIONS = 512  # a graph without calls fuses and folds better, as long as it is small


@converter("cond")
def cond(c: Primitive) -> list[Value | None]:
    """The branch that the first operand names; beyond the last it is the last."""
    branches, known = c.params["branches"], c.number(0)
    args = c.values[1:]
    if known is not None:
        return entered(c, branches[min(max(int(known), 0), len(branches) - 1)], args)
    which = c.cast(c.x(0), "int32")

    def chosen(first: int) -> list[relax.Expr]:
        if first == len(branches) - 1:
            return _exprs(c, branches[first], args)
        here = c.emit(relax.op.less_equal(which, c.scalar(first, "int32")))
        return if_then_else(
            c.block, here, lambda: _exprs(c, branches[first], args), lambda: chosen(first + 1), name="cond"
        )

    return list(chosen(0))


def _exprs(c: Primitive, inner: Any, args: Sequence[Value]) -> list[relax.Expr]:
    """The results of a function inside, as tensors."""
    out = []
    for value in entered(c, inner, list(args)):
        if value is None:
            c.refuse("a function inside it that cannot be converted")
        out.append(c.walker.expr_of(value))
    return out


@converter("while")
def while_(c: Primitive) -> list[relax.Expr]:
    """A condition with axes, which vmap makes of one for each example: every example stops for itself."""
    p = c.params
    axes = list(range(len(p["cond_jaxpr"].out_avals[0].shape)))
    split = [int(p["cond_nconsts"]), int(p["cond_nconsts"]) + int(p["body_nconsts"])]
    tested, used, carried = c.values[: split[0]], c.values[split[0] : split[1]], c.values[split[1] :]

    def goes_on(state: list[relax.Expr]) -> relax.Expr:
        return _exprs(c, p["cond_jaxpr"], [*tested, *state])[0]

    def proceed(state: list[relax.Expr]) -> relax.Expr:
        here = goes_on(state)
        return c.cast(c.emit(relax.op.max(c.cast(here, "int8"), axes)), "bool") if axes else here

    def step(state: list[relax.Expr]) -> list[relax.Expr]:
        found = _exprs(c, p["body_jaxpr"], [*used, *state])
        if not axes:
            return found
        here = goes_on(state)
        return [c.emit(relax.op.where(_widened(c, here, new), new, old)) for new, old in zip(found, state)]

    return while_loop(c.block, [c.walker.expr_of(v) for v in carried], proceed, step, name="while")


def _widened(c: Primitive, condition: relax.Expr, x: relax.Expr) -> relax.Expr:
    """`condition` with axes of size 1 behind its own, as many as `x` has more."""
    shape = expr_shape(condition)
    return c.reshape(condition, [*shape, *[1] * (len(expr_shape(x)) - len(shape))])


@converter("scan")
def scan(c: Primitive) -> list[Value | None]:
    """The body for every row of the scanned operands: a state that is carried, and a row of every further result."""
    p, length = c.params, c.walker.dims.dim(c.params["length"])
    kept = int(p["num_consts"]) + int(p["num_carry"])
    used, init, rows = c.values[: int(p["num_consts"])], c.values[int(p["num_consts"]) : kept], c.values[kept:]
    layer = recurrent(c, used, init)
    if layer is not None:
        return list(layer)
    scanned = [c.walker.expr_of(v) for v in rows]
    most = _UNROLLED_EQUATIONS // max(_count(p["jaxpr"]), 1)
    if isinstance(length, int) and 0 < length <= min(_UNROLLED_STEPS, max(most, 1)):
        return _written_out(c, length, used, init, scanned)
    return _looped(c, length, used, init, scanned)


def _count(jaxpr: Any) -> int:
    """Equations of a function, those of functions inside it included."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    total = len(inner.eqns)
    for eqn in inner.eqns:
        total += sum(_count(v) for v in eqn.params.values() if hasattr(v, "eqns") or hasattr(v, "jaxpr"))
    return total


def _written_out(
    c: Primitive, length: int, used: Sequence[Value], init: Sequence[Value], scanned: Sequence[relax.Expr]
) -> list[Value | None]:
    state: list[Value] = list(init)
    made: list[list[relax.Expr]] = []
    for step in reversed(range(length)) if c.params["reverse"] else range(length):
        bounds = [prim(step)], [prim(step + 1)]
        parts = [c.emit(relax.op.strided_slice(x, [0], *bounds)) for x in scanned]
        rows = [reshaped(c, part, _row_shape(c, place)) for place, part in enumerate(parts)]
        found = entered(c, c.params["jaxpr"], [*used, *state, *rows])
        if any(value is None for value in found):
            return [None] * len(c.eqn.outvars)
        whole = [value for value in found if value is not None]
        state = whole[: len(state)]
        made.append([c.walker.expr_of(value) for value in whole[len(state) :]])
    if c.params["reverse"]:
        made.reverse()
    stacked = []
    for place in range(len(c.eqn.outvars) - len(state)):
        shape = [1, *c.shape_out(len(state) + place)[1:]]
        stacked.append(c.emit(relax.op.concat([c.reshape(step[place], shape) for step in made], 0)))
    return [*state, *stacked]


def _row_shape(c: Primitive, place: int) -> list[Dim]:
    """The shape of one row of the scanned operand number `place`."""
    first = int(c.params["num_consts"]) + int(c.params["num_carry"])
    return c.shape_of(first + place)[1:]


def _looped(
    c: Primitive, length: Dim, used: Sequence[Value], init: Sequence[Value], scanned: Sequence[relax.Expr]
) -> list[Value | None]:
    """Rows are read where the loop is, and written in place."""
    count = c.walker.expr_of(size_value(c, length, "int64"))
    last = c.emit(relax.op.subtract(count, relax.const(np.int64(1), "int64")))
    carried = len(init)
    rows = []
    for place in range(carried, len(c.eqn.outvars)):
        dtype = dtype_name(c.eqn.outvars[place].aval.dtype)
        rows.append(allocate_rows(c.block, prim(length), [prim(d) for d in c.shape_out(place)[1:]], dtype))

    def step(state: list[relax.Expr], index: relax.Expr) -> Stepped:
        at = c.emit(relax.op.subtract(last, index)) if c.params["reverse"] else index
        given = [_row(c, x, at) for x in scanned]
        found = list(map(c.bind, _exprs(c, c.params["jaxpr"], [*used, *state, *given])))
        return found[:carried], [(at, row) for row in found[carried:]]

    return list(counted_loop(c.block, count, [c.walker.expr_of(value) for value in init], rows, step))


def _row(c: Primitive, x: relax.Expr, at: relax.Expr) -> relax.Expr:
    """The row of `x` whose number `at` holds."""

    def compute(x: te.Tensor, at: te.Tensor) -> te.Tensor:
        return te.compute(x.shape[1:], lambda *i: x[(at[()], *i)], name="row")

    return c.te(compute, x, at, name="row")
