"""Spellings of `halo.rotary`: x * cos + rotated(x) * sin, with tables computed from positions at run time.

    half         rotated(x) = concat(-x[d/2:], x[:d/2]),           tables of f = concat(a, a)
    interleaved  rotated(x) = (-x[1], x[0], -x[3], x[2], ...),     tables of a with every element twice
The operator reads one half of each table, so the cosine and sine are taken of `a` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax, tirx
from tvm.relax.dpl import is_op, wildcard

from ..errors import Rejected
from ._operator import Lift, Match, number_of, same_dimension
from ._views import NoView, chain_of, positions, probes

Call = Callable[..., relax.Expr]


def rotary_lifts(call: Call) -> Sequence[Lift]:
    """The sum of two products; `call` makes the operator."""
    multiply = is_op("relax.multiply")
    left, right = multiply(wildcard(), wildcard()), multiply(wildcard(), wildcard())
    pattern = is_op("relax.add")(left, right)
    return (Lift("rotary.tables", pattern, lambda m: _lifted(m, m[pattern], call), benefit=15),)


def _lifted(match: Match, total: relax.Call, call: Call) -> relax.Expr:
    products = [match.value(arg) for arg in match.value(total).args]
    for plain, turned in (products, products[::-1]):
        for x, cosine in (plain.args, list(plain.args)[::-1]):
            for rotated, sine in (turned.args, list(turned.args)[::-1]):
                interleaved = _rotation(match, rotated, x)
                if interleaved is not None:
                    return _call(match, x, _table(match, cosine, "cos"), _table(match, sine, "sin"), interleaved, call)
    raise Rejected("no operand of the sum is a rotation of the other")


def _rotation(match: Match, rotated: relax.Expr, x: relax.Expr) -> bool | None:
    """Whether `rotated` exchanges pairs of `x` and negates one: False for halves, True for neighbours, None if not."""
    width = x.ty.shape.values[-1] if x.ty.ndim > 0 and isinstance(x.ty.shape, relax.ShapeExpr) else None
    if not isinstance(width, tirx.IntImm) or int(width) % 2:
        return None
    d = int(width)
    value = match.value(rotated)
    if _name(value) == "relax.concat" and int(value.attrs.axis) in (-1, x.ty.ndim - 1):
        parts = _fields(match, value.args[0])
        if len(parts) == 2 and _name(match.value(parts[0])) == "relax.negative":
            second = _slice_of(match, match.value(parts[0]).args[0], x)
            first = _slice_of(match, parts[1], x)
            if first == (0, d // 2, 1) and second == (d // 2, d, 1):
                return False
        return None
    if _name(value) in ("relax.reshape", "relax.flatten"):
        inner = match.value(value.args[0])
        if _name(inner) not in ("relax.concat", "relax.stack") or inner.ty.ndim != x.ty.ndim + 1:
            return None
        parts = [match.value(f) for f in _fields(match, inner.args[0])]
        parts = [match.value(p.args[0]) if _name(p) in ("relax.reshape", "relax.expand_dims") else p for p in parts]
        if len(parts) == 2 and _name(parts[0]) == "relax.negative":
            odd = _slice_of(match, parts[0].args[0], x)
            even = _slice_of(match, parts[1], x)
            if odd == (1, d, 2) and even == (0, d, 2):
                return True
    return None


def _fields(match: Match, expr: relax.Expr) -> list[relax.Expr]:
    value = match.value(expr)
    return list(value.fields) if isinstance(value, relax.Tuple) else []


def _slice_of(match: Match, part: relax.Expr, x: relax.Expr) -> tuple[int, int, int] | None:
    """(begin, end, step) when `part` is a slice of the last axis of `x`."""
    value, d, last = match.value(part), int(x.ty.shape.values[-1]), x.ty.ndim - 1
    if isinstance(value, relax.TupleGetItem):
        split = match.value(value.tuple_value)
        halves = _name(split) == "relax.split" and split.args[0].same_as(x) and int(split.attrs.axis) in (-1, last)
        size = int(part.ty.shape.values[-1]) if halves else 0
        return (value.index * size, (value.index + 1) * size, 1) if halves and 2 * size == d else None
    if _name(value) != "relax.strided_slice" or not value.args[0].same_as(x):
        return None
    axes, begins, ends, *steps = ([_int(v) for v in _numbers(match, a)] for a in value.args[1:])
    step = steps[0][0] if steps else 1
    if len(axes) != 1 or axes[0] not in (-1, last) or None in (begins[0], ends[0], step) or step < 1:
        return None
    begin, end = (v + d if v < 0 else min(v, d) for v in (begins[0], ends[0]))
    return begin, end, step


def _numbers(match: Match, expr: relax.Expr) -> list[object]:
    value = match.value(expr)
    return list(value.fields) if isinstance(value, relax.Tuple) else list(value.values)


def _int(expr: object) -> int | None:
    expr = expr.value if hasattr(expr, "value") and not isinstance(expr, tirx.IntImm) else expr
    return int(expr) if isinstance(expr, int | tirx.IntImm) else None


@dataclass(frozen=True)
class _Table:
    """cos or sin of `angle`, times `factor`, at which `chain` is looked up."""

    function: str
    chain: list[relax.Expr]  # from the operand to the value of cos or sin, and behind it to the angle's base
    angle: relax.Expr  # [1|b, s, d] or [s, d]
    factor: float


def _table(match: Match, expr: relax.Expr, function: str) -> _Table:
    """Follow an operand to the cosine or sine it is a view of."""
    chain = chain_of(expr, match.value)
    value = match.value(chain[-1])
    factor = 1.0
    if _name(value) == "relax.multiply":
        number = number_of(match.value(value.args[1]))
        if number is None:
            raise Rejected(f"the {function} table is scaled by more than a number")
        factor = number
        rest = chain_of(value.args[0], match.value)
        if len(rest) != 1:
            raise Rejected(f"the {function} table is rearranged below its scale")
        value = match.value(rest[-1])
    if _name(value) != f"relax.{function}":
        raise Rejected(f"a factor of the sum is no {function} of positions")
    return _Table(function, chain, value.args[0], factor)


def _call(match: Match, x: relax.Expr, cosine: _Table, sine: _Table, interleaved: bool, call: Call) -> relax.Expr:
    if not cosine.angle.same_as(sine.angle):
        raise Rejected("cosine and sine are taken of different angles")
    if x.ty.ndim != 4:
        raise Rejected(f"the operator takes tensors of rank 4, got {x.ty}")
    half = _half(match, cosine.angle, interleaved)
    dims, shape = list(cosine.angle.ty.shape.values), list(x.ty.shape.values)
    lead, length = (dims[0], dims[1]) if len(dims) == 3 else (tirx.IntImm("int64", 1), dims[0])
    heads_first = _heads_first(match, cosine.chain, shape, lead, length)
    for table in (sine,):
        if _heads_first(match, table.chain, shape, lead, length) != heads_first:
            raise Rejected("cosine and sine are arranged differently")
    one = isinstance(lead, tirx.IntImm) and lead.value == 1
    rows = length if one else lead * length
    width = int(shape[3]) // 2
    tables = []
    for table in (cosine, sine):
        values = getattr(relax.op, table.function)(half)
        if table.factor != 1.0:
            values = relax.op.multiply(values, relax.const(np.float32(table.factor)))
        tables.append(relax.op.reshape(values, [rows, width]))
    at = relax.op.arange(0, rows, 1, "int64")
    if not one:
        at = relax.op.reshape(at, [lead, length])
    if not heads_first:
        return call(x, at, *tables, interleaved=interleaved)
    turned = call(relax.op.permute_dims(x, [0, 2, 1, 3]), at, *tables, interleaved=interleaved)
    return relax.op.permute_dims(turned, [0, 2, 1, 3])


def _half(match: Match, angle: relax.Expr, interleaved: bool) -> relax.Expr:
    """The angles of the pairs: `a` of concat(a, a), or of `a` with every element twice."""
    value = match.value(angle)
    if not interleaved and _name(value) == "relax.concat" and int(value.attrs.axis) in (-1, angle.ty.ndim - 1):
        parts = _fields(match, value.args[0])
        if len(parts) == 2 and parts[0].same_as(parts[1]):
            return parts[0]
    raise Rejected("the angles of the two members of a pair are not one")


def _heads_first(match: Match, chain: list, shape: list, lead: object, length: object) -> bool:
    """Whether the table, broadcast to x, puts positions at axis 2 ([b, h, s, d]); False: at axis 1."""
    dims = list(chain[0].ty.shape.values)
    if len(dims) not in (3, 4):
        raise Rejected(f"a table of rank {len(dims)}")
    dims = [tirx.IntImm("int64", 1)] * (4 - len(dims)) + dims
    ones = [isinstance(d, tirx.IntImm) and d.value == 1 for d in dims]
    try:
        same = all(
            np.array_equal(arrays[0].reshape(-1), arrays[-1].reshape(-1))
            for arrays in (positions(chain, len(chain) - 1, match.value, probe) for probe in probes())
        )
    except NoView as reason:
        raise Rejected(f"the tables are rearranged: {reason}") from reason
    if not same or not same_dimension(dims[3], shape[3]):
        raise Rejected("the tables are rearranged")
    if ones[1] and same_dimension(dims[2], length) and same_dimension(shape[2], length) and same_dimension(dims[0], lead):
        return True
    if ones[2] and same_dimension(dims[1], length) and same_dimension(shape[1], length) and same_dimension(dims[0], lead):
        return False
    raise Rejected("the tables do not follow the positions of x")


def _name(value: object) -> str:
    return value.op.name if isinstance(value, relax.Call) and isinstance(value.op, ir.Op) else ""
