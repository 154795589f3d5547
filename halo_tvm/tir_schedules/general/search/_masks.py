"""Loads behind a condition on the vectorised iterator, as one masked load instead of one branch for each lane.

Before -> after
    if_then_else(1 <= v, x[v - 1], 0)   ->   loaded = masked.load(x + v - 1, 1 <= v + (0, 1, 2, ..)), chosen by a select
    loads that are not contiguous along v, or of other types: lane by lane, each behind its condition
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.ir import Expr

from ...blocks import loads, uses
from ...code.lanes import index, loop, simplify
from ...injective.nest import substituted
from ._access import COMPARISONS, Access, Guard, rebuilt, step_of

_MASKED_TYPES = ("float32", "float64", "int32", "int64", "int8", "uint8")
_FAR = 1 << 30  # a comparison of places this far apart does not change within a vector


def is_masked(access: Access, var: ir.Var) -> bool:
    """Whether a load behind conditions on `var` can be one masked load."""
    return (
        str(access.load.source.dtype) in _MASKED_TYPES
        and access.step(var) == 1
        and all(_is_index(guard.condition, var) for guard in access.guards_on(var))
    )


def ready(value: Expr, var: ir.Var, start: Expr, lanes: int, lane: ir.Var) -> tuple[list[tirx.Stmt], Expr]:
    """Statements to run first, and `value` at var = start + lane without a condition that differs between lanes."""
    here = simplify(start + lane)
    before: list[tirx.Stmt] = []

    def at(expr: Expr, place: Expr) -> Expr:
        return substituted(expr, {var: place})

    def load(node: ir.TensorLoad, guards: Sequence[Guard], other: Expr | None = None) -> Expr:
        access = Access(node, tuple(guards))
        if lanes == 1 or not access.guards_on(var):
            return tirx.BufferLoad(node.source, [simplify(at(i, here)) for i in node.indices])
        dtype = str(node.source.dtype)
        vector = tirx.decl_buffer([index(lanes)], dtype, name="guarded")
        before.append(tirx.AllocBuffer(vector))
        if is_masked(access, var):
            mask: Expr = tirx.Broadcast(tirx.const(True, "bool"), lanes)
            for guard in guards:
                mask = tirx.And(mask, _mask(guard, var, start, lanes))
            place = tirx.BufferLoad(node.source, [simplify(at(i, start)) for i in node.indices])
            others = tirx.Broadcast(tirx.const(0, dtype) if other is None else other, lanes)
            call = tirx.call_llvm_pure_intrin(
                f"{dtype}x{lanes}", "llvm.masked.load", tirx.address_of(place), mask, others
            )
            before.append(tirx.BufferStore(vector, call, [tirx.Ramp(index(0), index(1), lanes)]))
        else:

            def one(number: Expr) -> list[tirx.Stmt]:
                out: Expr = node
                for guard in reversed(guards):
                    condition = guard.condition if guard.holds else tirx.Not(guard.condition)
                    out = tirx.if_then_else(condition, out, tirx.const(0, dtype))
                return [tirx.BufferStore(vector, at(out, simplify(start + number)), [number])]

            before.append(loop("one", lanes, one, tirx.ForKind.UNROLLED))
        return tirx.BufferLoad(vector, [lane])

    def padded(node: Expr, guards: Sequence[Guard]) -> Expr | None:
        """A choice between a load and a constant in one: the constant is in the lanes that the mask leaves out."""
        condition, yes, no = node.args
        if lanes == 1 or guards or not isinstance(yes, ir.TensorLoad) or not uses(condition, var):
            return None
        if not isinstance(no, (tirx.IntImm, tirx.FloatImm)) or not is_masked(
            Access(yes, (Guard(condition, True),)), var
        ):
            return None
        return load(yes, (Guard(condition, True),), no)

    def choose(condition: Expr, yes: Expr, no: Expr) -> Expr:
        differs = lanes > 1 and uses(condition, var)
        condition = at(condition, here)
        return tirx.Select(condition, yes, no) if differs else tirx.if_then_else(condition, yes, no)

    rebuilt_value = rebuilt(value, load, choose, padded)
    return before, substituted(rebuilt_value, {var: here})


def _is_index(condition: Expr, var: ir.Var) -> bool:
    """Whether `condition` compares places, each of which moves with `var` by constant steps."""
    if isinstance(condition, (tirx.And, tirx.Or)):
        return _is_index(condition.a, var) and _is_index(condition.b, var)
    if isinstance(condition, tirx.Not):
        return _is_index(condition.a, var)
    if isinstance(condition, COMPARISONS):
        return not loads(condition) and step_of(_difference(condition), var) is not None
    return not uses(condition, var)


def _difference(comparison: Expr) -> Expr:
    return comparison.a - comparison.b


def _mask(guard: Guard, var: ir.Var, start: Expr, lanes: int) -> Expr:
    mask = _lanes_of(guard.condition, var, start, lanes)
    return mask if guard.holds else tirx.Not(mask)


def _lanes_of(condition: Expr, var: ir.Var, start: Expr, lanes: int) -> Expr:
    """`condition` of `lanes` places from `start` on, as a vector of truth values."""
    if not uses(condition, var):
        return tirx.Broadcast(condition, lanes)
    if isinstance(condition, (tirx.And, tirx.Or)):
        return type(condition)(*(_lanes_of(c, var, start, lanes) for c in (condition.a, condition.b)))
    if isinstance(condition, tirx.Not):
        return tirx.Not(_lanes_of(condition.a, var, start, lanes))
    difference = _difference(condition)
    step = step_of(difference, var)
    assert step is not None, "is_masked has looked"
    first = simplify(substituted(difference, {var: start}))
    near = tirx.Cast("int32", tirx.max(tirx.min(first, index(_FAR)), index(-_FAR)))
    zero = tirx.Broadcast(tirx.IntImm("int32", 0), lanes)
    return type(condition)(tirx.Ramp(near, tirx.IntImm("int32", step), lanes), zero)
