"""Equal parts of the columns of a product: stages behind it, where a rule takes them for some.

Before                                           after
    y = call_tir(linear, x, w)                       the group of linear, slices and multiply is one function
    g = call_tir(slice, y);  u = call_tir(slice, y)
    h = call_tir(multiply, g, u)
For TVM a slice reads at another place than it writes, and joins no product. It may here: a kernel that computes the
columns of both parts side by side has what each element needs.
"""

from __future__ import annotations

import tvm
from tvm import ir, relax, tirx

from ..relay_ops.operator import op_name
from ..tir_schedules.blocks import blocks
from ..tir_schedules.stages import offset_of
from .graph_pass import bindings, users_of


def column_parts(mod: tvm.IRModule) -> set[str]:
    """The functions of `mod` that take parts of a product's columns, where nothing else reads the product."""
    found = {b.var: b.value for b in bindings(mod["main"]) if op_name(b.value) == "relax.call_tir"}
    parts: set[str] = set()
    for var, readers in users_of(mod["main"]).items():
        if var not in found or not _multiplies(mod[found[var].args[0]]):
            continue
        calls = [found[reader] for reader in readers if reader in found]
        if len(calls) < max(2, len(readers)) or not all(_is_part(mod[call.args[0]], var) for call in calls):
            continue
        if len({int(call.ty_args[0].shape.values[-1]) for call in calls}) == 1:
            parts |= {call.args[0].name_hint for call in calls}
    return parts


def _multiplies(func: object) -> bool:
    """Whether `func` computes rows times a weight."""
    return isinstance(func, tirx.PrimFunc) and any("R" in block.kinds and block.op for block in blocks(func))


def _is_part(func: object, var: relax.Var) -> bool:
    """Whether `func` reads columns of its only operand, a matrix, from some column on."""
    if not isinstance(func, tirx.PrimFunc) or var.ty.ndim != 2:
        return False
    found = blocks(func)
    if len(found) != 1 or found[0].store is None or not isinstance(found[0].store.value, ir.TensorLoad):
        return False
    store = found[0].store
    return isinstance(store.buffer.ty.shape[-1], tirx.IntImm) and offset_of(store.value, found[0].vars) is not None
