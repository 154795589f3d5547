"""Horizontal fusion: projections of one input that are read together become one linear.

Before -> after
    attention(reshape(linear(x, wq)), reshape(linear(x, wk)), reshape(linear(x, wv)), ...)
        ->   attention(linear(x, [wq | wk | wv]), ..., packed=True)
    attention(reshape(y[..., :a]), reshape(y[..., a:b]), reshape(y[..., b:]), ...)
        ->   attention(y, ..., packed=True)
    silu(linear(x, wg)) * linear(x, wu)
        ->   silu(y[..., :n]) * y[..., n:],   y = linear(x, [wg | wu]), see `_gates`
    one pass over x instead of three or two; attention reads q, k and v in place, a gate is applied behind the product
Declines
    attention over computed q, k, v (rotary, caches); projections of different inputs; some without a bias;
    linears whose input has another rank than 3; reshapes that do more than split the width into heads; columns of one
    tensor that are not all of it, queries first, then keys, then values; gates on targets without a rule that takes
    halves, or of weights that are read in chunks
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from ..errors import Declined
from ..relay_ops import OPERATORS
from ..relay_ops.operator import attrs_of, operator_of, same_shape
from ._gates import gate_pairs, half_width
from ._join_linears import joined
from ._projection_parts import columns_of
from .graph_pass import Context, Pass, Report, bindings, op_name, rebuild
from .weights import WeightEditor


@dataclass(frozen=True)
class FuseProjections(Pass):
    """Join the three projections in front of an attention, and a gate with what it gates."""

    name = "fuse_projections"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        func = mod["main"]
        editor = WeightEditor(func, context.params)
        values = {b.var: b.value for b in bindings(func)}
        fused: list[str] = []
        declined: list[dict[str, str]] = []

        def rewrite(call: relax.Call) -> relax.Expr:
            operator = operator_of(call)
            if operator is None or operator.name != "attention":
                return call
            attrs = attrs_of(call)
            layer = str(attrs.get("layer"))
            if attrs.get("packed"):
                declined.append({"layer": layer, "reason": "already one projection"})
                return call
            try:
                whole = _join(call, attrs, values, editor)
            except Declined as reason:
                declined.append({"layer": layer, "reason": str(reason)})
                return call
            fused.append(layer)
            return whole

        func = rebuild(func, rewrite)
        made: dict[relax.Var, list[relax.VarBinding]] = {}
        for pair in gate_pairs(func):
            layer = str(attrs_of(pair[0].value).get("layer"))
            try:
                made |= _halves(pair, layer, editor, context)
                fused.append(layer)
            except Declined as reason:
                declined.append({"layer": layer, "reason": str(reason)})
        mod = editor.finish(mod, _with(func, made))
        clean = [relax.transform.Normalize(), relax.transform.DeadCodeElimination()]
        return tvm.transform.Sequential(clean)(mod), {"fused": fused, "declined": declined}


def _join(
    call: relax.Call, attrs: dict[str, object], values: dict[relax.Var, relax.Expr], editor: WeightEditor
) -> relax.Expr:
    if attrs.get("has_lengths"):
        raise Declined("attention over a cache reads other keys than it projects")
    whole = _whole(call, attrs, values)
    if whole is not None:
        return OPERATORS["attention"].call(whole, *call.args[3:], **{**attrs, "packed": True})
    projections = [_projection(arg, values, attrs["head_dim"]) for arg in call.args[:3]]
    x = projections[0].args[0]
    if any(not p.args[0].same_as(x) for p in projections):
        raise Declined("query, key and value are projections of different inputs")
    linear = joined(projections, editor, attrs.get("layer"))
    return OPERATORS["attention"].call(linear, *call.args[3:], **{**attrs, "packed": True})


def _halves(
    pair: tuple[relax.VarBinding, relax.VarBinding], layer: str, editor: WeightEditor, context: Context
) -> dict[relax.Var, list[relax.VarBinding]]:
    """What stands in place of the bindings of two linears: one linear, and its halves."""
    calls = [binding.value for binding in pair]
    width, ty = half_width(pair[0], context), pair[0].var.ty
    linear = joined(calls, editor, layer, width)
    *rows, n = ty.shape.values
    whole = relax.DataflowVar("halves", relax.TensorType([*rows, 2 * width], ty.dtype))
    parts = [
        relax.VarBinding(b.var, relax.op.strided_slice(whole, [len(rows)], [i * width], [i * width + int(n)]))
        for i, b in enumerate(pair)
    ]
    return {pair[0].var: [relax.VarBinding(whole, linear), parts[0]], pair[1].var: [parts[1]]}


def _with(func: relax.Function, made: dict[relax.Var, list[relax.VarBinding]]) -> relax.Expr:
    """The body of `func` with the bindings of some variables replaced."""
    blocks = [type(block)([new for b in block.bindings for new in made.get(b.var, [b])]) for block in func.body.blocks]
    return relax.SeqExpr(blocks, func.body.body)


def _whole(call: relax.Call, attrs: dict[str, object], values: dict[relax.Var, relax.Expr]) -> relax.Expr | None:
    """The tensor [b, s, (h + 2 * h_kv) * d] whose columns are query, key and value, in this order; else None."""
    found = [_columns(arg, values) for arg in call.args[:3]]
    if None in found or any(not x.same_as(found[0][0]) for x, _, _ in found):
        return None
    x, d = found[0][0], attrs["head_dim"]
    ends = [attrs["num_heads"] * d]
    ends += [ends[0] + attrs["num_kv_heads"] * d, ends[0] + 2 * attrs["num_kv_heads"] * d]
    rows = call.args[0].ty.shape.values[:2]
    in_order = [(begin, end) for _, begin, end in found] == list(zip([0, *ends], ends))
    same_rows = all(same_shape(arg.ty.shape.values[:2], rows) for arg in call.args[1:3])
    if not in_order or not same_rows or not same_shape(x.ty.shape.values[-1:], ends[-1:]):
        return None
    # The parts are whole rows of x, one behind the other: so are theirs with one batch, of windows and groups.
    return x if same_shape(x.ty.shape.values[:-1], rows) else relax.op.reshape(x, [*rows, ends[-1]])


def _columns(arg: relax.Expr, values: dict[relax.Var, relax.Expr]) -> tuple[relax.Expr, int, int] | None:
    """(x, begin, end) where `arg` is a reshape of the columns begin..end of x."""
    value = values.get(arg)
    part = value.args[0] if op_name(value) == "relax.reshape" else arg
    value = values.get(part)
    if isinstance(value, relax.TupleGetItem):
        split = values.get(value.tuple_value)
        if op_name(split) != "relax.split" or split.args[0].ty.ndim != 3 or int(split.attrs.axis) not in (-1, 2):
            return None
        widths = [field.shape.values[-1] for field in split.ty.fields]
        if not all(isinstance(width, tirx.IntImm) for width in widths):
            return None
        begin = sum(map(int, widths[: value.index]))
        return split.args[0], begin, begin + int(widths[value.index])
    cut = columns_of(value, lambda e: values.get(e, e)) if op_name(value) == "relax.strided_slice" else None
    return (cut.expr, cut.begin, cut.end) if cut is not None else None


def _projection(arg: relax.Expr, values: dict[relax.Var, relax.Expr], head_dim: int) -> relax.Call:
    """The linear [b, s, n] of which `arg` is the reshape to [b, s, heads, head_dim]."""
    value = values.get(arg)
    if op_name(value) == "relax.reshape":
        value = values.get(value.args[0])
    operator = operator_of(value)
    if operator is None or operator.name != "linear":
        raise Declined(
            f"query, key or value is computed by {op_name(value).removeprefix('relax.') or 'no operator'}, "
            "not projected"
        )
    *rows, heads, _ = arg.ty.shape.values
    columns, x = attrs_of(value)["n"], value.args[0].ty
    if x.ndim != 3 or not same_shape([*x.shape.values[:-1], columns], [*rows, heads * head_dim]):
        raise Declined(
            f"a projection of {x} to {columns} columns is not [batch, sequence, width] whose columns "
            f"a reshape splits into the heads of {arg.ty}"
        )
    return value
