"""Can the phases behind an importer take this graph? Only operators with a lowering, and results of known rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tvm
from tvm import relax

# Without a lowering of their own: the virtual machine executes them, our passes lower them, or they vanish.
_KNOWN = frozenset(
    f"relax.{name}"
    for name in (
        "shape_of tensor_to_shape null_value call_tir call_tir_inplace call_dps_packed call_pure_packed "
        "call_inplace_packed sort argsort topk cumsum cumprod nonzero unique invoke_pure_closure invoke_closure "
        "make_closure"
    ).split()
)


def what_cannot_be_lowered(func: relax.Function, names: Iterable[str]) -> list[str]:
    """Operators without lowering and the first whose results have no known rank, each once, in order.

    Branches are entered. Sizes may depend on values: a dimension that a match_cast names is as good as any; an
    operator that TVM lowers by sizes needs those of its operands named so. `names` are operator names as the model's
    format spells them; they replace TVM's where they are the same word.
    """
    spelled = {name.lower(): name for name in names}
    found: dict[str, None] = {}
    lost: set[relax.Var] = set()  # values of unknown shape: what is made of them is not blamed again
    for var, value in _bindings(func.body):
        name = _name(value)
        shown = spelled.get(name.split(".")[-1].replace("_", ""), name.removeprefix("relax."))
        if isinstance(value, relax.Function):
            found[f"{shown} (a function inside a function)"] = None
        elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and not _lowers(value.op):
            found[f"{shown} (no lowering)"] = None
        elif isinstance(value, relax.Call) and _needs_sizes(value):
            unknown = [a for a in value.args if isinstance(a, relax.Expr) and not _is_known(a.ty)]
            if unknown and lost.isdisjoint(relax.analysis.free_vars(value)):
                found[f"{shown} (the shape of its operand is not known)"] = None
            if unknown:
                lost.add(var)
    return list(found)


def _bindings(body: relax.Expr) -> Iterator[tuple[relax.Var, relax.Expr]]:
    if not isinstance(body, relax.SeqExpr):
        return
    for block in body.blocks:
        for binding in block.bindings:
            yield binding.var, binding.value
            if isinstance(binding.value, relax.If):
                yield from _bindings(binding.value.true_branch)
                yield from _bindings(binding.value.false_branch)


def _name(value: relax.Expr) -> str:
    if isinstance(value, relax.Call):
        return value.op.name if isinstance(value.op, tvm.ir.Op) else getattr(value.op, "global_symbol", str(value.op))
    return type(value).__name__


def _lowers(op: tvm.ir.Op) -> bool:
    return op.name in _KNOWN or op.get_attr("FLegalize") is not None


def _needs_sizes(call: relax.Call) -> bool:
    """Whether the call becomes a kernel, whose buffers have sizes; the virtual machine's own calls look at the data."""
    return isinstance(call.op, tvm.ir.Op) and call.op.get_attr("FLegalize") is not None


def _is_known(ty: tvm.ir.Type) -> bool:
    """A tensor with a size for each dimension, or a tuple of such; shapes are looked up as the program runs."""
    if isinstance(ty, relax.TensorType):
        return isinstance(ty.shape, relax.ShapeExpr)
    if hasattr(ty, "fields"):
        return all(map(_is_known, ty.fields))
    return True
