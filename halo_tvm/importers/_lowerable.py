"""Can the phases behind an importer take this graph? Known shapes, and only operators with a lowering."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tvm
from tvm import relax, tirx

# Without a lowering of their own: the virtual machine executes them, or they vanish.
_KNOWN = frozenset({"relax.shape_of", "relax.tensor_to_shape", "relax.null_value", "relax.call_tir"})


def what_cannot_be_lowered(func: relax.Function, names: Iterable[str]) -> list[str]:
    """Operators without lowering and the first whose results have no known shape, each once, in order.

    `names` are operator names as the model's format spells them; they replace TVM's where they are the same word.
    """
    spelled = {name.lower(): name for name in names}
    given = {symbol for param in func.params for symbol in relax.analysis.tir_vars_in_type(param.ty)}
    found: dict[str, None] = {}
    lost: set[relax.Var] = set()  # values of unknown shape: what is made of them is not blamed again
    for var, value, declared in _bindings(func):
        given.update(declared or ())
        name = _name(value)
        shown = spelled.get(name.split(".")[-1].replace("_", ""), name.removeprefix("relax."))
        if not isinstance(value, relax.Expr | tvm.ir.Expr) or isinstance(value, relax.If | relax.Function):
            found[f"{shown} (control flow)"] = None
        elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and not _lowers(value.op):
            found[f"{shown} (no lowering)"] = None
        elif declared is not None and not _is_known(var.ty):
            continue  # a shape that is forgotten here and declared by the next match_cast
        elif not _is_known(var.ty) or not given.issuperset(relax.analysis.tir_vars_in_type(var.ty)):
            if lost.isdisjoint(relax.analysis.free_vars(value)):
                found[f"{shown} (its shape depends on values)"] = None
            lost.add(var)
    return list(found)


def _bindings(func: relax.Function) -> Iterator[tuple[relax.Var, relax.Expr, list[tirx.Var] | None]]:
    """Variable, value, and the sizes that the binding itself names: those of a match_cast."""
    if not isinstance(func.body, relax.SeqExpr):
        return
    for block in func.body.blocks:
        for binding in block.bindings:
            is_cast = isinstance(binding, relax.MatchCast)
            yield binding.var, binding.value, relax.analysis.tir_vars_in_type(binding.ty) if is_cast else None


def _name(value: relax.Expr) -> str:
    if isinstance(value, relax.Call):
        return value.op.name if isinstance(value.op, tvm.ir.Op) else getattr(value.op, "global_symbol", str(value.op))
    return type(value).__name__


def _lowers(op: tvm.ir.Op) -> bool:
    return op.name in _KNOWN or op.get_attr("FLegalize") is not None


def _is_known(ty: tvm.ir.Type) -> bool:
    """A tensor with a size for each dimension, a shape of known rank, or a tuple of such."""
    if isinstance(ty, relax.TensorType):
        return isinstance(ty.shape, relax.ShapeExpr)
    if isinstance(ty, relax.ShapeType):
        return ty.ndim >= 0  # sizes read from a tensor get their names from the match_cast that follows
    if hasattr(ty, "fields"):
        return all(map(_is_known, ty.fields))
    return True
