"""Algebraic simplification of what importers and other passes leave behind.

Before -> after
    reshape(reshape(x, s), t)            ->   reshape(x, t)
    reshape(x, shape of x)               ->   x
    permute_dims(permute_dims(x, a), b)  ->   permute_dims(x, a[b]), also behind a reshape that moves axes of size 1
    permute_dims(x, identity)            ->   x
    multiply(x, 1), add(x, 0), subtract(x, 0), divide(x, 1), astype(x, its dtype)   ->   x
    strided_slice of views of a projection   ->   views of its columns (`_projection_parts`)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..relay_ops.operator import number_of, order_of, same_shape
from ..tir_schedules.blocks import is_const
from ._projection_parts import part_of_projection
from ._rewrite import rewrite_calls
from .graph_pass import Context, Pass, Report, op_name

_NEUTRAL = {"relax.multiply": 1.0, "relax.divide": 1.0, "relax.add": 0.0, "relax.subtract": 0.0}


@dataclass(frozen=True)
class Simplify(Pass):
    """Remove operations that change nothing, join those that repeat."""

    name = "simplify"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        return rewrite_calls(mod, _simpler)


def _simpler(call: relax.Call, value: Callable[[relax.Expr], relax.Expr]) -> tuple[relax.Expr, str] | None:
    name = op_name(call)
    inner = value(call.args[0]) if call.args else None
    if name == "relax.reshape":
        shapes = [x.ty.shape for x in (call, call.args[0])]
        if all(isinstance(s, relax.ShapeExpr) for s in shapes) and same_shape(*(s.values for s in shapes)):
            return call.args[0], "reshape to the same shape"
        if op_name(inner) == "relax.reshape":
            return relax.op.reshape(inner.args[0], call.args[1]), "reshape of a reshape"
    if name == "relax.permute_dims":
        axes = order_of(call)
        if axes == list(range(len(axes))):
            return call.args[0], "identity transpose"
        if op_name(inner) == "relax.permute_dims":
            return relax.op.permute_dims(inner.args[0], [order_of(inner)[a] for a in axes]), "transpose of a transpose"
        if (joined := _behind_unit_axes(call, value)) is not None:
            return joined, "transpose of a transpose behind axes of size 1"
    if name == "relax.strided_slice" and (part := part_of_projection(call, value)) is not None:
        return part, "part of a projection"
    if name == "relax.astype" and call.ty.dtype == call.args[0].ty.dtype:
        return call.args[0], "cast to the same dtype"
    if name in _NEUTRAL and number_of(call.args[1]) == _NEUTRAL[name] and call.ty == call.args[0].ty:
        return call.args[0], "neutral element"
    return None


def _behind_unit_axes(call: relax.Call, value: Callable[[relax.Expr], relax.Expr]) -> relax.Expr | None:
    """The permute_dims `call` of a reshape of a permute_dims as one of both, where the reshape moves axes of size 1."""
    reshape = value(call.args[0])
    inner = value(reshape.args[0]) if op_name(reshape) == "relax.reshape" else None
    if op_name(inner) != "relax.permute_dims":
        return None
    shapes = [expr.ty.shape for expr in (inner.args[0], inner, reshape)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return None
    source, before, behind = (list(shape.values) for shape in shapes)
    real, left = ([a for a, dim in enumerate(dims) if not is_const(dim, 1)] for dims in (before, behind))
    if not same_shape([before[a] for a in real], [behind[a] for a in left]):
        return None
    from_source = dict(zip(left, (order_of(inner)[a] for a in real)))
    order = [from_source[a] for a in order_of(call) if a in from_source]
    moved, kept = inner.args[0], sorted(order)
    if order != kept:
        moved = relax.op.reshape(moved, [source[a] for a in kept])
        moved = relax.op.permute_dims(moved, [kept.index(a) for a in order])
    return relax.op.reshape(moved, call.ty.shape)
