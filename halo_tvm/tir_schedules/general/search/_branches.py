"""Conditions that are the same for every lane, taken out of the vectors: one branch before them all.

Before -> after
    for lanes: s += if_then_else(p and q(lane), x, 0)   ->   if p: for lanes: s += if_then_else(q(lane), x, 0)
    a branch that only adds zero is left out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...blocks import is_choice, loads, uses
from ...code.lanes import seq
from ._program import Total

Emit = Callable[[Sequence[Total]], list[tirx.Stmt]]
_DEPTH = 3  # branches in each other; every one may double the code


def branched(totals: Sequence[Total], inner: Sequence[ir.Var], emit: Emit, depth: int = _DEPTH) -> list[tirx.Stmt]:
    """emit(totals) behind the conditions in them that use none of the variables `inner`."""
    condition = _common(totals, inner) if depth else None
    if condition is None:
        return emit(totals)
    yes = [replace(t, update=_without(t.update, condition, inner, True)) for t in totals]
    no = [replace(t, update=_without(t.update, condition, inner, False)) for t in totals]
    then = seq(branched(yes, inner, emit, depth - 1))
    if all(_adds_nothing(total) for total in no):
        return [tirx.IfThenElse(condition, then, None)]
    return [tirx.IfThenElse(condition, then, seq(branched(no, inner, emit, depth - 1)))]


def _common(totals: Sequence[Total], inner: Sequence[ir.Var]) -> Expr | None:
    """What an outermost condition demands of all lanes, or None."""
    found: list[Expr] = []

    def visit(node: ir.Call) -> None:
        if is_choice(node):
            demanded, _ = _parts(node.args[0], inner)
            found.extend([] if demanded is None else [demanded])

    for total in totals:
        tvm_ffi.structural_walk(total.update, (ir.Call, visit), order="post")
    return found[-1] if found else None  # inner ones come first


def _parts(condition: Expr, inner: Sequence[ir.Var]) -> tuple[Expr | None, Expr | None]:
    """`condition` as a conjunction of what uses none of `inner`, and of the rest."""
    if isinstance(condition, tirx.And):
        (a, rest_a), (b, rest_b) = (_parts(side, inner) for side in (condition.a, condition.b))
        return _both(a, b), _both(rest_a, rest_b)
    free = not loads(condition) and not any(uses(condition, var) for var in inner)
    return (condition, None) if free else (None, condition)


def _both(a: Expr | None, b: Expr | None) -> Expr | None:
    return tirx.And(a, b) if a is not None and b is not None else a if b is None else b


def _without(value: Expr, condition: Expr, inner: Sequence[ir.Var], holds: bool) -> Expr:
    """`value` where `condition` is known to hold, or not to."""

    def visit(node: ir.Call) -> Expr:
        if not is_choice(node):
            return node
        demanded, rest = _parts(node.args[0], inner)
        if demanded is None or not tvm_ffi.structural_equal(demanded, condition):
            return node
        if not holds:
            return node.args[2]
        return node.args[1] if rest is None else tirx.if_then_else(rest, node.args[1], node.args[2])

    return tvm_ffi.structural_map(value, (ir.Call, visit), order="post")


def _adds_nothing(total: Total) -> bool:
    if total.operation is not tirx.Add:
        return False
    return all(isinstance(x, (tirx.IntImm, tirx.FloatImm)) and x.value == 0 for x in (total.start, total.operand))
