"""Whether a group of functions that fusion would make one is served by a rule of its own."""

from __future__ import annotations

import tvm
from tvm import relax

from ..errors import Declined
from ..relay_ops.operator import op_name
from ..targets import Target
from .graph_pass import bindings
from .schedule import rule_for


def rule_of_group(group: relax.Function, mod: tvm.IRModule, target: Target) -> str:
    """The rule that serves the group as one function; `Declined` when none but the last resort does."""
    parts = {b.value.args[0] for b in bindings(group) if op_name(b.value) == "relax.call_tir"}
    small = tvm.IRModule({gvar: mod[gvar] for gvar in parts})
    builder = relax.BlockBuilder(small)
    gvar = builder.add_func(group, "group")
    params = [relax.Var(p.name, p.ty) for p in group.params]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(gvar, params))
        builder.emit_func_output(result)
    fused = relax.transform.FuseTIR()(builder.get())
    (func,) = [f for g, f in fused.functions_items() if g.name_hint == gvar.name_hint]
    choice = rule_for(func, target)
    if choice.rule.is_general or choice.rule.name == target.spec.rules[-1]:
        raise Declined("; ".join(choice.declined))
    return choice.rule.name


def why_unserved(group: relax.Function, mod: tvm.IRModule, target: Target) -> str | None:
    """Why no rule but the last resort serves the group as one function; None where one does."""
    try:
        rule_of_group(group, mod, target)
    except Declined as reason:
        return str(reason)
    return None
