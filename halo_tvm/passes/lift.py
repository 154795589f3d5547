"""Recognise operators: every sub-graph that some operator's lift matches becomes one call.

Before -> after
    add(matmul(x, permute_dims(w)), b)   ->   halo.linear(x, w, b, layout="nk")
Report
    applied: lift -> count; rejected: lift and reason of each match that its precondition refused;
    operators: how often each `halo.` operator is called afterwards, lifted or built
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ..errors import Rejected
from ..relay_ops import OPERATORS, Lift
from ..relay_ops._operator import Match
from ._pass import Context, Pass, Report, count_calls, replace_main
from ._weights import num_inputs


@dataclass(frozen=True)
class LiftOperators(Pass):
    """Run the lifts of all operators, largest benefit first."""

    name = "lift"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        lifts = sorted(
            (lift for op in OPERATORS.values() for lift in op.lifts()), key=lambda lift: (-lift.benefit, lift.name)
        )
        applied: dict[str, int] = {}
        rejected: list[dict[str, str]] = []
        for lift in lifts:
            mod, count = apply_lift(mod, lift, rejected)
            if count:
                applied[lift.name] = count
        mod = relax.transform.DeadCodeElimination()(mod)
        operators = {n.removeprefix("halo."): c for n, c in count_calls(mod["main"]).items() if n.startswith("halo.")}
        return mod, {"applied": applied, "rejected": rejected, "operators": operators}


def apply_lift(mod: tvm.IRModule, lift: Lift, rejected: list[dict[str, str]]) -> tuple[tvm.IRModule, int]:
    """Try `lift` at every binding of main, in order; later bindings see what earlier ones became."""
    func = mod["main"]
    values = {b.var: b.value for block in func.body.blocks for b in block.bindings if isinstance(b, relax.VarBinding)}
    variables = {value: var for var, value in values.items()}
    weights = frozenset(func.params[num_inputs(func) :])
    count = 0
    blocks = []
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            # Only calls: an alias `y = x` would match what x is bound to, a second time.
            is_call = isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Call)
            found = lift.pattern.extract_matched_expr(binding.value, values) if is_call else None
            if found is not None:
                try:
                    lifted = lift.build(Match(found, variables, values, weights))
                except Rejected as reason:
                    rejected.append({"lift": lift.name, "node": binding.var.name, "reason": str(reason)})
                else:
                    binding = relax.VarBinding(binding.var, lifted)
                    values[binding.var] = lifted
                    variables[lifted] = binding.var
                    count += 1
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    if not count:
        return mod, 0
    body = relax.SeqExpr(blocks, func.body.body)
    lifted_func = relax.Function(func.params, body, func.ret_ty, func.is_pure).with_attrs(
        {k: func.attrs[k] for k in func.attrs.keys()}
    )
    return relax.transform.Normalize()(replace_main(mod, lifted_func)), count
