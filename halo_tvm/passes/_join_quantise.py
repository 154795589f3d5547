"""A quantise joins the function that makes its rows: one kernel normalises and quantises while a row is in cache.

Before -> after
    y = call_tir(layer_norm, ...);  t = call_tir(quantize, y)   ->   u = fused_layer_norm_quantize(...)
    q = t[0];  s = t[1]                                              q = u[0];  s = u[1];  y = u[2] where y is used
FuseOps does not join two reductions. Both work row by row here, so that the join saves reading y again, and writing it
where nothing else needs it.
Declines
    rows whose kernel no rule serves together with the quantise (linear, attention): each keeps its own
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, tirx

from ..errors import Declined
from ..targets import Target
from ..tir_schedules.blocks import main_block
from ._served_groups import rule_of_group
from .graph_pass import Report, bindings, op_name, replace_main, with_blocks


def join_quantise(mod: tvm.IRModule, target: Target) -> tuple[tvm.IRModule, list[Report]]:
    """`mod`, grouped by FuseOps, with every quantise in the group of its rows that some rule serves together."""
    func = mod["main"]
    uses = _uses(func)
    report: list[Report] = []
    builder = relax.BlockBuilder(mod)
    blocks = []
    for block in func.body.blocks:
        made = {b.var: b.value for b in block.bindings if isinstance(b, relax.VarBinding)}
        joins: dict[relax.Var, relax.Var] = {}  # rows -> the tuple (q, scale) that is made of them
        for var, value in made.items():
            rows = _rows_of(value, mod)
            parts = uses.get(var, [])
            if rows in made and all(isinstance(p, relax.TupleGetItem) for p in parts):
                joins[rows] = var
        blocks.append(type(block)(_joined(block, made, joins, uses, builder, target, report)))
    return replace_main(builder.get(), with_blocks(func, blocks)), report


def _joined(
    block: relax.BindingBlock,
    made: dict[relax.Var, relax.Expr],
    joins: dict[relax.Var, relax.Var],
    uses: dict[relax.Var, list[relax.Expr | None]],
    builder: relax.BlockBuilder,
    target: Target,
    report: list[Report],
) -> list[relax.Binding]:
    """The bindings of `block`; groups that are formed are added to the module of `builder`."""
    mod = builder.get()
    out: list[relax.Binding] = []
    fields: dict[relax.Var, tuple[relax.Var, int]] = {}  # a tuple (q, scale) that is gone -> the group's result
    for binding in block.bindings:
        var = binding.var
        if not isinstance(binding, relax.VarBinding):
            out.append(binding)
        elif var in joins:
            quantised = joins[var]
            alone = all(reader is not None and reader.same_as(made[quantised]) for reader in uses[var])
            try:
                group, args = _group(binding.value, made[quantised], var, keep=not alone, mod=mod)
                rule = rule_of_group(group, mod, target)
            except Declined as reason:
                report.append({"rows": _label(binding.value), "joined": False, "reason": str(reason)})
                out.append(binding)
                continue
            label = _label(binding.value)
            gvar = builder.add_func(group, f"{label if label.startswith('fused_') else f'fused_{label}'}_quantize")
            report.append({"rows": _label(binding.value), "joined": True, "rule": rule, "rows_kept": not alone})
            types = [*made[quantised].ty.fields, *([] if alone else [var.ty])]
            result = relax.DataflowVar(f"{var.name}_q", relax.TupleType(types))
            out.append(relax.VarBinding(result, relax.Call(gvar, args)))
            if not alone:
                out.append(relax.VarBinding(var, relax.TupleGetItem(result, 2)))
            fields[quantised] = result
        elif var in fields:
            continue
        elif isinstance(binding.value, relax.TupleGetItem) and binding.value.tuple_value in fields:
            result = fields[binding.value.tuple_value]
            out.append(relax.VarBinding(var, relax.TupleGetItem(result, binding.value.index)))
        else:
            out.append(binding)
    return out


def _rows_of(value: relax.Expr, mod: tvm.IRModule) -> relax.Var | None:
    """The variable that a call of a quantise reads, None for any other value."""
    if op_name(value) != "relax.call_tir" or not isinstance(mod[value.args[0]], tirx.PrimFunc):
        return None
    return value.args[1].fields[0] if main_block(mod[value.args[0]], "quantize") is not None else None


def _group(
    rows: relax.Expr, quantise: relax.Call, var: relax.Var, *, keep: bool, mod: tvm.IRModule
) -> tuple[relax.Function, Sequence[relax.Expr]]:
    """A primitive function of what `rows` reads that gives (q, scale), and the rows when they are to be kept."""
    if op_name(rows) == "relax.call_tir" and len(rows.args) == 2:
        args = list(dict.fromkeys(rows.args[1].fields))
        params = [relax.Var(f"p{i}", arg.ty) for i, arg in enumerate(args)]
        inner = dict(zip(args, params))
        steps: list[relax.Binding] = []
        values = relax.Tuple([inner[arg] for arg in rows.args[1].fields])
        made, ty = relax.Call(rows.op, [rows.args[0], values], rows.attrs, rows.ty_args), var.ty
    elif isinstance(rows, relax.Call) and isinstance(rows.op, tvm.ir.GlobalVar) and _is_primitive(mod[rows.op]):
        args = list(rows.args)
        group = mod[rows.op]
        params = list(group.params)
        *steps, last = bindings(group)
        if not group.body.body.same_as(last.var):
            raise Declined("the group gives several results")
        made, ty = last.value, last.var.ty
    else:
        raise Declined(f"rows are made by {_label(rows)}, which is no kernel")
    if not isinstance(ty, relax.TensorType):
        raise Declined("the rows are one of several results")
    if any(isinstance(param.ty, tvm.ir.PrimType) for param in params):  # FuseTIR takes no function with such
        raise Declined("the rows are made of sizes beside tensors")
    if len(quantise.args[1].fields) > 1:  # numbers of main, which the group calls otherwise
        raise Declined("the quantise takes sizes beside the rows")
    # Types in the symbols of the group, which are not those of main.
    dims = list(ty.shape.values)
    types = [relax.TensorType(dims, "uint8"), relax.TensorType(dims[:-1], "float32")]
    y = (relax.Var if keep else relax.DataflowVar)("y", ty)
    both = relax.DataflowVar("both", relax.TupleType(types))
    outputs = [relax.Var(name, field) for name, field in zip(("q", "scale"), types)]
    inputs = [quantise.args[0], relax.Tuple([y])]
    call = relax.Call(quantise.op, inputs, quantise.attrs, [relax.TupleType(types)])
    body = [
        *steps,
        relax.VarBinding(y, made),
        relax.VarBinding(both, call),
        *(relax.VarBinding(v, relax.TupleGetItem(both, i)) for i, v in enumerate(outputs)),
    ]
    results = [*outputs, y] if keep else outputs
    whole = relax.SeqExpr([relax.DataflowBlock(body)], relax.Tuple(results))
    func = relax.Function(params, whole, relax.TupleType([v.ty for v in results]))
    return relax.utils.copy_with_new_vars(func.with_attr("Primitive", True)), args


def _label(rows: relax.Expr) -> str:
    if op_name(rows) == "relax.call_tir":
        return rows.args[0].name_hint
    return rows.op.name_hint if isinstance(getattr(rows, "op", None), tvm.ir.GlobalVar) else op_name(rows) or "a value"


def _is_primitive(func: object) -> bool:
    return isinstance(func, relax.Function) and bool(func.attrs and func.attrs.get("Primitive"))


def _uses(func: relax.Function) -> dict[relax.Var, list[relax.Expr | None]]:
    """Who reads each variable; None stands for the function's result, and for a cast."""
    found: dict[relax.Var, list[relax.Expr | None]] = {}
    for block in func.body.blocks:
        for binding in block.bindings:
            reader = binding.value if isinstance(binding, relax.VarBinding) else None
            for var in relax.analysis.free_vars(binding.value):
                found.setdefault(var, []).append(reader)
    for var in relax.analysis.free_vars(func.body.body):
        found.setdefault(var, []).append(None)
    return found
