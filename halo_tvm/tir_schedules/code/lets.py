"""Names inside of expressions: let t = value in body.

TVM puts the value of a `Let` in the place of its variable wherever it simplifies, and in code generation again: what it
looks at multiplies along a chain. `passes/_stages` stores what is large in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ..blocks import choices_along, chosen_along, is_choice, loads
from .bits import kind_of, like

Lets = Sequence[tuple[tirx.Var, Expr]]


def let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of a variable bound to `value`: its many uses are evaluated once."""
    if isinstance(value, tirx.Var):
        return body(value)
    var = tirx.Var("t", str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def hoist_lets(expr: Expr) -> Expr:
    """`expr` with every `Let` moved outward into one chain: let a = .. in let b = .. in body.

    TVM's simplifier visits the value of a `Let` twice and stops at a `Let` inside it. What moves out of a branch of
    if_then_else keeps the branch's condition where it may fail outside: its loads may be out of bounds there.
    """
    chain: list[tuple[tirx.Var, Expr]] = []

    def on_let(let: tirx.Let) -> Expr:
        lets, body = chain_of(let)  # not a call for each: some kernels have hundreds, and no callback may raise
        for var, value in lets:
            chain.append((var, strip(value)))
        return strip(body)

    def guarded(branch: Expr, holds: Expr) -> Expr:
        first = len(chain)
        branch = strip(branch)
        for i, (var, value) in enumerate(chain[first:], first):
            if _may_fail(value):
                chain[i] = var, tirx.if_then_else(holds, value, like(value, 1, kind_of(value)))
        return branch

    def on_call(call: ir.Call) -> Expr:
        if not is_choice(call) or not has_lets(call):  # what this returns is visited, too
            return call
        choices, rest = choices_along(call)
        parts: list[tuple[Expr, Expr]] = []
        others: list[Expr] = []
        for choice in choices:
            condition = strip(choice.args[0])
            parts.append((condition, guarded(choice.args[1], reduce(tirx.And, [*others, condition]))))
            others.append(tirx.Not(condition))
        return chosen_along(choices, parts, guarded(rest, reduce(tirx.And, others)))

    def strip(expr: Expr) -> Expr:
        return tvm_ffi.structural_map(expr, ((tirx.Let, on_let), (ir.Call, on_call)), order="pre")

    body = strip(expr)
    return under_lets(chain, body)


def has_lets(expr: Expr) -> bool:
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(expr, (tirx.Let, found.append), order="post")
    return bool(found)


def _may_fail(value: Expr) -> bool:
    """Whether `value` is read from memory or divides integers."""
    divisions: list[Expr] = []
    for kind in (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod):
        tvm_ffi.structural_walk(value, (kind, divisions.append), order="post")
    return bool(loads(value)) or any("int" in str(division.ty.dtype) for division in divisions)


def chain_of(expr: Expr) -> tuple[list[tuple[tirx.Var, Expr]], Expr]:
    """The names at the head of `expr`, and what is made of them."""
    chain: list[tuple[tirx.Var, Expr]] = []
    while isinstance(expr, tirx.Let):
        chain.append((expr.var, expr.value))
        expr = expr.body
    return chain, expr


def under_lets(chain: Lets, body: Expr) -> Expr:
    """`body` behind the names of `chain`."""
    for var, value in reversed(chain):
        body = tirx.Let(var, _of_numbers(value), body)
    return body


def _of_numbers(value: Expr) -> Expr:
    """`value` without conversions of truth to numbers: TVM bounds what it names, and has no bounds of vectors of it."""

    def chosen(cast: tirx.Cast) -> Expr:
        if kind_of(cast.value) != "bool":
            return cast
        return tirx.Select(cast.value, like(cast, 1, kind_of(cast)), like(cast, 0, kind_of(cast)))

    return tvm_ffi.structural_map(value, (tirx.Cast, chosen), order="post")


def with_own_names(expr: Expr) -> Expr:
    """`expr` with variables of its own: TVM takes one variable with two values for a mistake."""
    own: dict[ir.Var, Expr] = {}

    def name(let: tirx.Let) -> None:
        own[let.var] = tirx.Var(let.var.name, let.var.ty)

    tvm_ffi.structural_walk(expr, (tirx.Let, name), order="pre")
    if not own:
        return expr

    def renamed(let: tirx.Let) -> Expr:
        return tirx.Let(own.get(let.var, let.var), let.value, let.body)

    steps = ((ir.Var, lambda v: own.get(v, v)), (tirx.Let, renamed))
    return tvm_ffi.structural_map(expr, steps, order="post")
