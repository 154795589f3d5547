"""Spellings of `halo.ffn`: a linear, followed back through an activation to the linears in front of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax, tirx
from tvm.relax.dpl import is_op

from ..errors import NoMatch, Rejected
from ._slices import slice_of
from .operator import RESHAPES, Lift, Match, attrs_of, number_of, op_name, same_dimension, same_places
from .parts.activation import ACTIVATIONS, QUICK

Call = Callable[..., relax.Expr]
_NAMES = {activation.op: name for name, activation in ACTIVATIONS.items() if activation.op}


def ffn_lifts(call: Call) -> Sequence[Lift]:
    """The projection down, over linears already lifted; `call` makes the operator."""
    down = is_op("relax.halo.linear")(varg_default_wildcard=True)
    return (Lift("ffn.linears", down, lambda m: _lifted(m, m[down], call), benefit=10),)


@dataclass(frozen=True)
class _Projection:
    """A linear in front of the activation, or one half of its columns."""

    linear: relax.Call
    half: int | None = None  # 0: the first columns, 1: the others


def _lifted(match: Match, down: relax.Call, call: Call) -> relax.Expr:
    inside = {match.variables.get(down)}
    hidden = _flat(match, down.args[0], inside)
    found = _activated(match, hidden)
    gated = False
    if found is None and op_name(match.value(hidden)) == "relax.multiply":
        inside.add(hidden)
        product = match.value(hidden)
        for active, other in (product.args, list(product.args)[::-1]):
            active = _flat(match, active, inside)
            found = _activated(match, active)
            if found is not None:
                _check_same_places(product)
                hidden, gated, up = active, True, _projection(match, other, inside)
                break
    if found is None:
        raise NoMatch("no activation in front of a linear")
    activation, x, parts = found
    inside |= {hidden, *parts}
    first = _projection(match, x, inside)
    projections = [first, up] if gated else [first]
    if any(p is None for p in projections):
        raise NoMatch("an activation of something else than a linear")
    if not gated and first.half is not None:
        raise NoMatch("an activation of a part of a linear")
    for projection in projections:
        match.require_unread("the hidden layer", projection.linear, inside)
    for var in inside - {match.variables.get(down)}:
        if isinstance(var, relax.Var) and not match.users.get(var, frozenset()) <= inside:
            raise Rejected(f"the hidden layer is used elsewhere too ({var.name}): it would be computed twice")
    return _build(match, activation, down, projections, call)


def _flat(match: Match, expr: relax.Expr, inside: set) -> relax.Expr:
    """`expr` before reshapes that keep its last axis."""
    value = match.value(expr)
    while op_name(value) in RESHAPES and _same_last(value.args[0], expr):
        inside.add(expr)
        expr = value.args[0]
        value = match.value(expr)
    return expr


def _same_last(a: relax.Expr, b: relax.Expr) -> bool:
    known = all(x.ty.ndim > 0 and isinstance(x.ty.shape, relax.ShapeExpr) for x in (a, b))
    return known and same_dimension(a.ty.shape.values[-1], b.ty.shape.values[-1])


def _activated(match: Match, expr: relax.Expr) -> tuple[str, relax.Expr, list[relax.Expr]] | None:
    """The activation that made `expr`, of what, and the variables in between."""
    value = match.value(expr)
    name = _NAMES.get(op_name(value))
    if name is not None:
        return name, value.args[0], []
    if op_name(value) != "relax.multiply":
        return None
    for x, gate in (value.args, list(value.args)[::-1]):
        sigmoid = match.value(gate)
        scaled = match.value(sigmoid.args[0]) if op_name(sigmoid) == "relax.sigmoid" else None
        if scaled is None or op_name(scaled) != "relax.multiply" or not any(a.same_as(x) for a in scaled.args):
            continue
        numbers = [number_of(match.value(a)) for a in scaled.args]
        if any(n is not None and math.isclose(n, QUICK, rel_tol=1e-6) for n in numbers):
            return "quick_gelu", x, [gate, sigmoid.args[0]]
    return None


def _projection(match: Match, expr: relax.Expr, inside: set) -> _Projection | None:
    """The linear that `expr` is, or is a half of."""
    expr = _flat(match, expr, inside)
    value = match.value(expr)
    inside.add(expr)
    if op_name(value) == "relax.halo.linear":
        return _Projection(value)
    source = value.args[0] if op_name(value) == "relax.strided_slice" else None
    if isinstance(value, relax.TupleGetItem):
        split = match.value(value.tuple_value)
        inside.add(value.tuple_value)
        source = split.args[0] if op_name(split) == "relax.split" else None
    if source is None or not isinstance(source.ty.shape, relax.ShapeExpr):
        return None
    width = source.ty.shape.values[-1]
    if not isinstance(width, tirx.IntImm) or int(width) % 2:
        return None
    part, n = slice_of(match, expr, source), int(width)
    linear = match.value(_flat(match, source, inside))
    if part not in ((0, n // 2, 1), (n // 2, n, 1)) or op_name(linear) != "relax.halo.linear":
        return None
    inside.add(source)
    return _Projection(linear, 0 if part[0] == 0 else 1)


def _check_same_places(product: relax.Call) -> None:
    """`Rejected` where a factor is broadcast: then rows of the one meet other rows of the other."""
    if not all(same_places(factor.ty, product.ty) for factor in product.args):
        left, right = (factor.ty for factor in product.args)
        raise Rejected(f"the gate and what it gates must have the shape of their product, got {left} and {right}")


def _build(match: Match, activation: str, down: relax.Call, projections: list[_Projection], call: Call) -> relax.Expr:
    calls = [*(p.linear for p in projections), down]
    layouts = {attrs_of(c)["layout"] for c in calls}
    biased = {len(c.args) == 3 for c in calls}
    if len(layouts) != 1 or len(biased) != 1:
        raise Rejected(
            f"projections must agree in layout and bias, found layouts {sorted(layouts)}, bias {sorted(biased)}"
        )
    inputs = [c.args[0] for c in calls[:-1]]
    if any(not x.same_as(inputs[0]) for x in inputs):
        raise Rejected("the gate and the up projection have different inputs")
    widths = {attrs_of(p.linear)["n"] // (1 if p.half is None else 2) for p in projections}
    if len(widths) != 1:
        raise Rejected(f"the gate and the up projection have different widths, found {sorted(widths)}")
    layout = layouts.pop()
    weights = [w for p in projections for w in _weights(p, layout)] + list(down.args[1:])
    out = call(
        inputs[0],
        *weights,
        activation=activation,
        gated=len(projections) == 2,
        bias=biased.pop(),
        layout=layout,
        layer=attrs_of(down).get("layer"),
    )
    shapes = [list(x.ty.shape.values[:-1]) for x in (inputs[0], down.args[0])]
    same = len(shapes[0]) == len(shapes[1]) and all(same_dimension(a, b) for a, b in zip(*shapes))
    return out if same else relax.op.reshape(out, [*shapes[1], attrs_of(down)["n"]])


def _weights(projection: _Projection, layout: str) -> list[relax.Expr]:
    """Weight and bias of a projection; of a half, as slices, which are hoisted out of the function."""
    weight, *bias = projection.linear.args[1:]
    if projection.half is None:
        return [weight, *bias]
    half = attrs_of(projection.linear)["n"] // 2
    begin, axis = projection.half * half, 1 if layout == "kn" else 0
    parts = [relax.op.strided_slice(weight, [axis], [begin], [begin + half])]
    return parts + [relax.op.strided_slice(b, [0], [begin], [begin + half]) for b in bias]
