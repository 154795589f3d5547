"""Spellings of `halo.rotary`: x * cos + rotated(x) * sin, with tables of any origin.

    half         rotated(x) = concat(-x[d/2:], x[:d/2]),           tables concat(a, a)
    interleaved  rotated(x) = (-x[1], x[0], -x[3], x[2], ...),     tables of a with every element twice
The operator reads one number per pair, so the tables are found without the repetition (`_rotary_tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, tirx
from tvm.relax.dpl import is_op, wildcard

from ..errors import NoMatch, Rejected
from ._rotary_tables import table_of
from ._slices import fields_of, slice_of
from .operator import Lift, Match, op_name, require_float, same_dimension

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
                    return _call(match, x, cosine, sine, interleaved, call)
    raise NoMatch("no operand of the sum is a rotation of the other")


def _call(
    match: Match, x: relax.Expr, cosine: relax.Expr, sine: relax.Expr, interleaved: bool, call: Call
) -> relax.Expr:
    if x.ty.ndim != 4:
        raise Rejected(f"the operator takes tensors of rank 4, got {x.ty}")
    require_float(x, cosine, sine)
    cos, sin = (table_of(match, operand, x, interleaved) for operand in (cosine, sine))
    if cos.heads_first != sin.heads_first or not same_dimension(cos.lead, sin.lead):
        raise Rejected("cosine and sine are arranged differently")
    one = isinstance(cos.lead, tirx.IntImm) and cos.lead.value == 1
    at = relax.op.arange(0, cos.length if one else cos.lead * cos.length, 1, "int64")
    if not one:
        at = relax.op.reshape(at, [cos.lead, cos.length])
    if not cos.heads_first:
        return call(x, at, cos.value, sin.value, interleaved=interleaved)
    turned = call(relax.op.permute_dims(x, [0, 2, 1, 3]), at, cos.value, sin.value, interleaved=interleaved)
    return relax.op.permute_dims(turned, [0, 2, 1, 3])


def _rotation(match: Match, rotated: relax.Expr, x: relax.Expr) -> bool | None:
    """Whether `rotated` exchanges pairs of `x` and negates one: False for halves, True for neighbours, None if not."""
    width = x.ty.shape.values[-1] if x.ty.ndim > 0 and isinstance(x.ty.shape, relax.ShapeExpr) else None
    if not isinstance(width, tirx.IntImm) or int(width) % 2:
        return None
    d = int(width)
    value = match.value(rotated)
    if op_name(value) == "relax.concat" and int(value.attrs.axis) in (-1, x.ty.ndim - 1):
        parts = fields_of(match, value.args[0])
        if len(parts) == 2 and op_name(match.value(parts[0])) == "relax.negative":
            second = slice_of(match, match.value(parts[0]).args[0], x)
            first = slice_of(match, parts[1], x)
            if first == (0, d // 2, 1) and second == (d // 2, d, 1):
                return False
        return None
    if op_name(value) in ("relax.reshape", "relax.flatten"):
        inner = match.value(value.args[0])
        if op_name(inner) not in ("relax.concat", "relax.stack") or inner.ty.ndim != x.ty.ndim + 1:
            return None
        if int(inner.attrs.axis or 0) not in (-1, x.ty.ndim):
            return None  # joined along another axis than the one behind the pairs
        parts = [match.value(f) for f in fields_of(match, inner.args[0])]
        parts = [match.value(p.args[0]) if op_name(p) in ("relax.reshape", "relax.expand_dims") else p for p in parts]
        if len(parts) == 2 and op_name(parts[0]) == "relax.negative":
            odd = slice_of(match, parts[0].args[0], x)
            even = slice_of(match, parts[1], x)
            if odd == (1, d, 2) and even == (0, d - 1, 2):
                return True
    return None
