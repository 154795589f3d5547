"""The body of a `scan` as an expression over its state and its row: what recurrent cells are recognised by.

Affine(terms, biases)   sums of row @ weight, state @ weight and vectors, cut into columns
Node(op, operands)      element-wise arithmetic on those
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._primitive import Primitive
from ._values import Spread, Value
from ._walk import constant_of

_SAME = frozenset("copy stop_gradient convert_element_type reshape squeeze expand_dims optimization_barrier".split())
_ELEMENTWISE = frozenset("add mul sub div neg exp logistic tanh".split())
_ENTERED = ("jaxpr", "call_jaxpr", "fun_jaxpr")


class NoCell(Exception):
    """The body has a part that no cell has."""


@dataclass(frozen=True, eq=False)
class Held:
    """What no step changes: a value of the program around the loop."""

    value: Value


@dataclass(frozen=True)
class Row:
    """The row of scanned operand number `place`."""

    place: int


@dataclass(frozen=True)
class State:
    """What is carried at `place`."""

    place: int


@dataclass(frozen=True)
class Columns:
    """Columns `low` to `high` of a weight [k, n], or of [n, k] that is `turned`, or of a vector [n].

    None for a weight is the identity: the columns are those of what it is multiplied with.
    """

    held: Held | None
    low: int
    high: int
    turned: bool = False

    def cut(self, low: int, high: int) -> Columns:
        return Columns(self.held, self.low + low, self.low + high, self.turned)


@dataclass(frozen=True)
class Affine:
    """The sum of products of sources with columns, and of vectors; `width` columns."""

    terms: tuple[tuple[Symbol, Columns], ...]
    biases: tuple[Columns, ...]
    width: int

    def cut(self, low: int, high: int) -> Affine:
        terms = tuple((source, columns.cut(low, high)) for source, columns in self.terms)
        return Affine(terms, tuple(b.cut(low, high) for b in self.biases), high - low)


@dataclass(frozen=True)
class Node:
    op: str
    operands: tuple[object, ...]


Symbol = Held | Row | State | Affine | Node


def symbols_of(c: Primitive, jaxpr: Any, args: Sequence[Symbol]) -> list[Symbol]:
    """The results of `jaxpr`, closed over its constants, for `args`; `NoCell` where they are of another kind."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    env: dict[Any, Symbol] = {v: Held(constant_of(k)) for v, k in zip(inner.constvars, getattr(jaxpr, "consts", ()))}
    env.update(zip(inner.invars, args, strict=True))

    def symbol(atom: Any) -> Symbol:
        return Held(constant_of(atom.val, atom.aval.dtype)) if hasattr(atom, "val") else env[atom]

    for eqn in _needed(inner):
        env.update(zip(eqn.outvars, _results(c, eqn, [symbol(atom) for atom in eqn.invars]), strict=True))
    return [symbol(atom) for atom in inner.outvars]


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that the results are made of."""
    read, kept = set(map(id, jaxpr.outvars)), []
    for eqn in reversed(jaxpr.eqns):
        if any(id(v) in read for v in eqn.outvars):
            read.update(map(id, eqn.invars))
            kept.append(eqn)
    return kept[::-1]


def _results(c: Primitive, eqn: Any, operands: list[Symbol]) -> Sequence[Symbol]:
    name, shape = eqn.primitive.name, eqn.outvars[0].aval.shape if eqn.outvars else ()
    if all(isinstance(o, Held) for o in operands):  # the same in every step: computed before the loop
        found = c.walker.converted(eqn, [o.value for o in operands if isinstance(o, Held)])
        if any(value is None for value in found):
            raise NoCell(name)
        return [Held(value) for value in found if value is not None]
    function = next((eqn.params[key] for key in _ENTERED if key in eqn.params), None)
    if function is not None and name not in ("scan", "while", "cond"):
        return symbols_of(c, function, operands)
    if name in _SAME and shape == eqn.invars[0].aval.shape and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype:
        return operands[:1]
    if name == "dot_general":
        return [_product(eqn, *operands)]
    if name in ("slice", "split"):
        return _cut(eqn, operands[0])
    if name in _ELEMENTWISE:
        return [_combined(eqn, operands)]
    raise NoCell(name)


def _product(eqn: Any, x: Symbol, weight: Symbol) -> Affine:
    (left, right), (batch, _) = eqn.params["dimension_numbers"]
    shape = eqn.invars[1].aval.shape
    is_one = len(eqn.invars[0].aval.shape) == 2 == len(shape) and tuple(left) == (1,) and not batch
    if not is_one or not isinstance(x, Row | State | Node) or not isinstance(weight, Held):
        raise NoCell("dot_general")
    turned = tuple(right) == (1,)
    width = int(shape[0 if turned else 1])
    return Affine(((x, Columns(weight, 0, width, turned)),), (), width)


def _cut(eqn: Any, x: Symbol) -> list[Affine]:
    rank = len(eqn.invars[0].aval.shape)
    if isinstance(x, Row):
        x = _whole(x, eqn.invars[0])
    if not isinstance(x, Affine):
        raise NoCell(eqn.primitive.name)
    if eqn.primitive.name == "split" and eqn.params["axis"] == rank - 1:
        ends = [int(sum(eqn.params["sizes"][: i + 1])) for i in range(len(eqn.params["sizes"]))]
        return [x.cut(low, high) for low, high in zip([0, *ends], ends)]
    if eqn.primitive.name == "slice":
        starts, limits, strides = (eqn.params[k] for k in ("start_indices", "limit_indices", "strides"))
        whole = zip(starts[:-1], limits[:-1], eqn.invars[0].aval.shape[:-1])
        if all(low == 0 and high == size for low, high, size in whole) and set(strides or (1,)) == {1}:
            return [x.cut(int(starts[-1]), int(limits[-1]))]
    raise NoCell(eqn.primitive.name)


def _combined(eqn: Any, operands: list[Symbol]) -> Symbol:
    if eqn.primitive.name == "add" and any(isinstance(o, Affine) for o in operands):
        width = int(eqn.outvars[0].aval.shape[-1])
        operands = [_whole(o, atom) if isinstance(o, Row) else o for o, atom in zip(operands, eqn.invars)]
        parts = [o if isinstance(o, Affine) else _bias(o, width) for o in operands]
        if all(part is not None and part.width == width for part in parts):
            terms = tuple(term for part in parts if part for term in part.terms)
            return Affine(terms, tuple(bias for part in parts if part for bias in part.biases), width)
    return _sigmoid(eqn.primitive.name, operands) or Node(eqn.primitive.name, tuple(operands))


def _sigmoid(name: str, operands: Sequence[Symbol]) -> Node | None:
    """1 / (1 + exp(-x)), as it stands in files of StableHLO."""
    if name != "div" or not is_one(operands[0]) or not isinstance(operands[1], Node) or operands[1].op != "add":
        return None
    one, power = operands[1].operands
    if not is_one(one) or not isinstance(power, Node) or power.op != "exp":
        return None
    (inner,) = power.operands
    return Node("logistic", inner.operands) if isinstance(inner, Node) and inner.op == "neg" else None


def is_one(x: object) -> bool:
    """Whether `x` is known to be made of ones."""
    value = x.value if isinstance(x, Held) else None
    array = getattr(value.small if isinstance(value, Spread) else value, "array", None)
    return array is not None and array.size == 1 and float(array.reshape(-1)[0]) == 1.0


def _whole(row: Row, atom: Any) -> Affine:
    """A row that was multiplied with its weight before the loop."""
    width = int(atom.aval.shape[-1])
    return Affine(((row, Columns(None, 0, width)),), (), width)


def _bias(x: Symbol, width: int) -> Affine | None:
    return Affine((), (Columns(x, 0, width),), width) if isinstance(x, Held) else None
