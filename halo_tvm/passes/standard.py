"""TVM's own graph passes under the names of our pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx

from ..relay_ops.operator import shaped
from ._division import QUOTIENTS
from .graph_pass import Context, Pass, Report, bindings, op_name, replace_main, with_blocks

_NUMPY_TYPES = {np.dtype(t).name for t in "bBhHiIlLfd"}


def _counted(mod: tvm.IRModule, *steps: tvm.ir.transform.Pass) -> tuple[tvm.IRModule, Report]:
    before = len(bindings(mod["main"]))
    mod = tvm.transform.Sequential(list(steps))(mod)
    return mod, {"bindings_before": before, "bindings_after": len(bindings(mod["main"]))}


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Evaluate what depends on constants only. Weights are parameters, so none is ever folded."""

    name = "fold"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        before = left = len(bindings(mod["main"]))
        while True:  # a quotient is folded when its divisor is
            mod = relax.transform.CanonicalizeBindings()(_folded(mod))
            after = len(bindings(mod["main"]))
            if after == left or not QUOTIENTS.keys() & {op_name(b.value) for b in bindings(mod["main"])}:
                return mod, {"bindings_before": before, "bindings_after": after}
            left = after


def _folded(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with what main computes from constants alone as constants.

    TVM's pass lowers every call of a module before it looks which are constant; here it sees only those that are.
    """
    func = mod["main"]
    constant: dict[relax.Var, relax.Expr] = {}  # variable -> its value, once and for all
    for binding in bindings(func):
        if _is_constant(binding.value, constant):
            constant[binding.var] = binding.value
    if not constant:
        return mod
    outer = relax.transform.FoldConstant()(_alone(constant))["main"]
    found = {var: _cast(field) for var, field in zip(constant, _results(outer))}
    found = {var: field for var, field in found.items() if isinstance(field, tvm.ir.GenericConst)}
    if not found:
        return mod
    blocks = [
        type(block)(
            [
                relax.VarBinding(b.var, found[b.var]) if isinstance(b, relax.VarBinding) and b.var in found else b
                for b in block.bindings
            ]
        )
        for block in func.body.blocks
    ]
    return replace_main(mod, with_blocks(func, blocks))


def _cast(expr: relax.Expr) -> relax.Expr:
    """The constant that `expr` casts to a type which holds all of its numbers; TVM's pass folds no cast."""
    if op_name(expr) != "relax.astype" or not isinstance(expr.args[0], tvm.ir.GenericConst):
        return expr
    array, dtype = expr.args[0].value.numpy(), str(expr.attrs.dtype)
    known = array.dtype.kind in "biuf" and dtype in _NUMPY_TYPES and np.can_cast(array.dtype, dtype)
    return relax.const(array.astype(dtype), dtype) if known else expr


def _is_constant(value: relax.Expr, constant: Mapping[relax.Var, relax.Expr]) -> bool:
    """A call of an operator with a lowering, of constants alone, whose result has elements and a known shape."""
    if not op_name(value) or not shaped(value.ty):
        return False
    if value.op.get_attr("FLegalize") is None or relax.analysis.tir_vars_in_type(value.ty):
        return False
    if any(isinstance(d, tvm.tirx.IntImm) and int(d) == 0 for d in value.ty.shape.values):
        return False  # a library holds no constant without elements
    if op_name(value) in QUOTIENTS and not _divides(value.args[1]):
        return False
    return all(_is_fixed(arg, constant) for arg in value.args)


def _divides(divisor: relax.Expr) -> bool:
    """Whether TVM's own quotients by constant numbers have a value: by 0 it refuses, or traps, as by -1 of integers."""
    if not isinstance(divisor, tvm.ir.GenericConst):
        return False
    return not np.isin(divisor.value.numpy().astype("float64"), (0, -1)).any()


def _is_fixed(arg: relax.Expr, constant: Mapping[relax.Var, relax.Expr]) -> bool:
    if isinstance(arg, relax.Tuple):
        return all(_is_fixed(field, constant) for field in arg.fields)
    if isinstance(arg, relax.ShapeExpr):
        return not relax.analysis.tir_vars_in_type(arg.ty)
    if isinstance(arg, relax.Var):
        return arg in constant
    return isinstance(arg, (tvm.ir.GenericConst, tirx.IntImm, tirx.FloatImm, tvm.ir.StringImm))


def _alone(constant: Mapping[relax.Var, relax.Expr]) -> tvm.IRModule:
    """A module whose main computes the values of `constant`, in a block of its own, and returns them all."""
    results = [relax.Var(f"r{i}", var.ty) for i, var in enumerate(constant)]
    inner = {var: relax.DataflowVar(var.name, var.ty) for var in constant}
    block = [relax.VarBinding(inner[var], _with(value, inner)) for var, value in constant.items()]
    block += [relax.VarBinding(result, var) for result, var in zip(results, inner.values())]
    body = relax.SeqExpr([relax.DataflowBlock(block)], relax.Tuple(results))
    func = relax.Function([], body, relax.TupleType([r.ty for r in results])).with_attr("global_symbol", "main")
    return relax.transform.Normalize()(tvm.IRModule({"main": func}))


def _with(value: relax.Call, names: Mapping[relax.Var, relax.Var]) -> relax.Call:
    def renamed(arg: relax.Expr) -> relax.Expr:
        return relax.Tuple([renamed(f) for f in arg.fields]) if isinstance(arg, relax.Tuple) else names.get(arg, arg)

    return relax.Call(value.op, [renamed(arg) for arg in value.args], value.attrs, value.ty_args)


def _results(func: relax.Function) -> list[relax.Expr]:
    """What main returns, constants in the place of the variables that hold them."""
    values = {b.var: b.value for b in bindings(func)}

    def end(expr: relax.Expr) -> relax.Expr:
        while isinstance(expr, relax.Var) and expr in values:
            expr = values[expr]
        return expr

    result = end(func.body.body)
    return [end(field) for field in result.fields]


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Compute equal expressions once."""

    name = "cse"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        return _counted(mod, relax.transform.EliminateCommonSubexpr(), relax.transform.CanonicalizeBindings())


@dataclass(frozen=True)
class DeadCode(Pass):
    """Drop what no output needs."""

    name = "dce"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        return _counted(mod, relax.transform.DeadCodeElimination())
