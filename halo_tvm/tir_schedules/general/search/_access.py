"""How the loads of an expression move along an iterator, and which conditions stand before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.ir import Expr

from ....errors import Declined
from ...blocks import is_choice, loads, uses
from ...code.lanes import constant, index, simplify
from ...injective.nest import substituted

COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_BINARY = (
    *COMPARISONS,
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
    *(tirx.And, tirx.Or),
)


@dataclass(frozen=True)
class Guard:
    """A condition before a load: `holds` False for the other branch of it."""

    condition: Expr
    holds: bool


@dataclass(frozen=True)
class Access:
    """One load and the conditions of `if_then_else` that it stands behind, outermost first."""

    load: ir.TensorLoad
    guards: tuple[Guard, ...]

    def guards_on(self, var: ir.Var) -> tuple[Guard, ...]:
        return tuple(guard for guard in self.guards if uses(guard.condition, var))

    def step(self, var: ir.Var) -> int | None:
        """Elements from the place at `var` to that at `var` + 1; None where that is no constant."""
        return step_of(place_of(self.load.source, self.load.indices), var)


def place_of(buffer: ir.Var, indices: Sequence[Expr]) -> Expr:
    """The place of an element in its buffer, in elements."""
    out: Expr = index(0)
    for at, extent in zip(indices, buffer.shape):
        out = out * extent + at
    return out


def step_of(expr: Expr, var: ir.Var) -> int | None:
    """expr(var + 1) - expr(var), or None where that is no constant."""
    if not uses(expr, var):
        return 0
    if loads(expr):
        return None
    return constant(simplify(substituted(expr, {var: var + index(1)}) - expr))


def accesses(value: Expr) -> list[Access]:
    """Every load of `value`; `Declined` where conditions stand inside something that is not looked into."""
    found: list[Access] = []

    def load(node: ir.TensorLoad, guards: Sequence[Guard]) -> Expr:
        found.append(Access(node, tuple(guards)))
        for at in node.indices:
            found.extend(Access(inner, tuple(guards)) for inner in loads(at))
        return node

    rebuilt(value, load)
    return found


def rebuilt(
    value: Expr,
    load: Callable[[ir.TensorLoad, Sequence[Guard]], Expr],
    choose: Callable[[Expr, Expr, Expr], Expr] | None = None,
    whole: Callable[[Expr, Sequence[Guard]], Expr | None] | None = None,
) -> Expr:
    """`value` with every load made anew by `load(node, guards)`, every `if_then_else` by `choose(condition, a, b)`.

    What `whole(node, guards)` makes of an `if_then_else` as it is comes first; None leaves it to the others.
    """

    def visit(node: Expr, guards: Sequence[Guard]) -> Expr:
        if isinstance(node, ir.TensorLoad):
            return load(node, guards)
        if is_choice(node):
            if whole is not None and (made := whole(node, guards)) is not None:
                return made
            condition, yes, no = node.args
            yes, no = visit(yes, [*guards, Guard(condition, True)]), visit(no, [*guards, Guard(condition, False)])
            return choose(condition, yes, no) if choose else tirx.if_then_else(condition, yes, no)
        if isinstance(node, _BINARY):
            return type(node)(visit(node.a, guards), visit(node.b, guards))
        if isinstance(node, tirx.Not):
            return tirx.Not(visit(node.a, guards))
        if isinstance(node, tirx.Cast):
            return tirx.Cast(str(node.ty.dtype), visit(node.value, guards))
        if isinstance(node, tirx.Select):
            parts = (node.condition, node.true_value, node.false_value)
            return tirx.Select(*(visit(part, guards) for part in parts))
        if isinstance(node, ir.Call):
            args = [visit(arg, guards) for arg in node.args]
            return ir.Call(node.op, args, node.attrs, node.ty_args, ret_ty=node.ty)
        if not loads(node):
            return node
        raise Declined(f"a value holds a {type(node).__name__}")

    return visit(value, ())
