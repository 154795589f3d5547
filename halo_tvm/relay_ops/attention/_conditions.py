"""One element of a mask: what it may be, and the algebra of conditions."""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import ir, relax, tirx

HIDDEN = -1e9  # an addend at or below it hides a key, as exporters write it (-10000 is too weak to be one)


class Unreadable(Exception):
    """An operator, or a combination of conditions, that no mask is known to use."""


@dataclass(frozen=True)
class Leaf:
    """One element of a tensor that is read no further."""

    tensor: relax.Expr
    index: tuple[tirx.PrimExpr, ...]


@dataclass(frozen=True)
class All:
    """Conjunction of comparisons of positions (boolean expressions) and of tensors whose element must not be 0."""

    parts: tuple[object, ...]


@dataclass(frozen=True)
class Not:
    part: object


@dataclass(frozen=True)
class Mask:
    """An addend that is 0 where `visible` holds and hides the key elsewhere."""

    visible: object


def core(value: object) -> object:
    """A condition without conjunctions of one part and without double negation."""
    if isinstance(value, All) and len(value.parts) == 1:
        return core(value.parts[0])
    if isinstance(value, Not):
        part = core(value.part)
        return part.part if isinstance(part, Not) else Not(part)
    return value


def same(a: object, b: object) -> bool:
    """Whether two conditions are spelled alike."""
    a, b = core(a), core(b)
    if isinstance(a, Leaf) and isinstance(b, Leaf):
        return a.tensor.same_as(b.tensor) and _equal(a.index, b.index)
    if isinstance(a, All) and isinstance(b, All):
        return len(a.parts) == len(b.parts) and all(same(x, y) for x, y in zip(a.parts, b.parts))
    if isinstance(a, Not) and isinstance(b, Not):
        return same(a.part, b.part)
    return isinstance(a, ir.Expr) and isinstance(b, ir.Expr) and tvm_ffi.structural_equal(a, b)


def _equal(a: tuple[tirx.PrimExpr, ...], b: tuple[tirx.PrimExpr, ...]) -> bool:
    return len(a) == len(b) and all(tvm_ffi.structural_equal(x, y) for x, y in zip(a, b))


def condition(value: object) -> object:
    """`value` as a condition: what is not 0 holds."""
    if isinstance(value, bool | int | float):
        return All(()) if value else Not(All(()))
    if isinstance(value, All | Not):
        return value
    if isinstance(value, Leaf):
        return All((value,))
    if isinstance(value, tirx.PrimExpr | ir.Expr) and str(value.dtype) == "bool":
        return All((value,))
    raise Unreadable("a number that stands for a condition")


def negated(value: object) -> object:
    value = condition(value)
    if isinstance(value, Not):
        return value.part
    if isinstance(value, All) and len(value.parts) == 1 and isinstance(value.parts[0], Not):
        return value.parts[0].part
    return Not(value)


def both(a: object, b: object) -> object:
    a, b = condition(a), condition(b)
    left = a.parts if isinstance(a, All) else (a,)
    right = b.parts if isinstance(b, All) else (b,)
    return All((*left, *right))


def either(a: object, b: object) -> object:
    a, b = condition(a), condition(b)
    if All(()) in (a, b):
        return All(())
    if a == Not(All(())):
        return b
    if b == Not(All(())):
        return a
    if isinstance(a, Not) and isinstance(b, Not):
        return Not(both(a.part, b.part))
    raise Unreadable("alternatives of conditions")


def hiding(value: object) -> object:
    """The condition under which the addend `value` is 0; elsewhere it hides the key."""
    if isinstance(value, Mask):
        return value.visible
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == 0:
            return All(())
        if value <= HIDDEN:
            return Not(All(()))
    raise Unreadable("an addend that is neither 0 nor large and negative")
