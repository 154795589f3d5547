"""Algebraic simplification of what importers and other passes leave behind.

Before -> after
    reshape(reshape(x, s), t)            ->   reshape(x, t)
    reshape(x, shape of x)               ->   x
    permute_dims(permute_dims(x, a), b)  ->   permute_dims(x, a[b])
    permute_dims(x, identity)            ->   x
    multiply(x, 1), add(x, 0), subtract(x, 0), divide(x, 1), astype(x, its dtype)   ->   x
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..relay_ops.operator import number_of, same_shape
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
        if same_shape(call.ty.shape.values, call.args[0].ty.shape.values):
            return call.args[0], "reshape to the same shape"
        if op_name(inner) == "relax.reshape":
            return relax.op.reshape(inner.args[0], call.args[1]), "reshape of a reshape"
    if name == "relax.permute_dims":
        axes = _axes(call)
        if axes == list(range(len(axes))):
            return call.args[0], "identity transpose"
        if op_name(inner) == "relax.permute_dims":
            return relax.op.permute_dims(inner.args[0], [_axes(inner)[a] for a in axes]), "transpose of a transpose"
    if name == "relax.astype" and call.ty.dtype == call.args[0].ty.dtype:
        return call.args[0], "cast to the same dtype"
    if name in _NEUTRAL and number_of(call.args[1]) == _NEUTRAL[name] and call.ty == call.args[0].ty:
        return call.args[0], "neutral element"
    return None


def _axes(call: relax.Call) -> list[int]:
    rank = call.args[0].ty.ndim
    return list(range(rank))[::-1] if call.attrs.axes is None else [int(a) % rank for a in call.attrs.axes]
