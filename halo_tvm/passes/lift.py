"""Recognise operators: every sub-graph that some operator's lift matches becomes one call.

Before -> after
    add(matmul(x, permute_dims(w)), b)   ->   halo.linear(x, w, b, layout="nk")
Report
    applied: lift -> count
    rejected: node, lift and reason of each match that a precondition refused, unless another lift took the node
    operators: how often each `halo.` operator is called afterwards, lifted or built
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.dpl import CallPattern, DFPattern, ExprPattern, OrPattern

from ..errors import NoMatch, Rejected
from ..relay_ops import OPERATORS, Lift
from ..relay_ops.operator import Match
from .graph_pass import Context, Pass, Report, count_calls, op_name, replace_main, same_type, users_of, with_blocks
from .graph_pass import bindings as bindings_of
from .weights import num_inputs


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
        rejected = _standing(rejected, mod["main"])
        operators = {n.removeprefix("halo."): c for n, c in count_calls(mod["main"]).items() if n.startswith("halo.")}
        return mod, {"applied": applied, "rejected": rejected, "operators": operators}


def _standing(rejected: list[dict[str, str]], func: relax.Function) -> list[dict[str, str]]:
    """The rejections of nodes that no lift took afterwards, each reason of a node once."""
    operators = {b.var.name: op_name(b.value) for b in bindings_of(func)}
    standing = (r for r in rejected if operators.get(r["var"]) == r["of"])
    unique = {(r["node"], r["reason"]): {key: r[key] for key in ("lift", "node", "reason")} for r in standing}
    return list(unique.values())


def _named(var: relax.Var, users: Mapping[relax.Var, frozenset[relax.Var | None]]) -> relax.Var:
    """`var`, or what it goes into, where lifts made it: then only that has the name the importer gave."""
    for _ in range(4):
        readers = users.get(var, frozenset())
        if not re.fullmatch(r"lv[0-9_]*", var.name) or len(readers) != 1 or None in readers:
            break
        (var,) = readers
    return var


def apply_lift(mod: tvm.IRModule, lift: Lift, rejected: list[dict[str, str]]) -> tuple[tvm.IRModule, int]:
    """Try `lift` at every binding of main, in order; later bindings see what earlier ones became.

    Appends to `rejected` the lift, the node and the reason; the variable (`var`) and its operator (`of`).
    """
    func = mod["main"]
    roots = _roots(lift.pattern)
    if roots is not None and not any(op_name(b.value) in roots for b in bindings_of(func)):
        return mod, 0
    values = {b.var: b.value for b in bindings_of(func)}
    variables = {value: var for var, value in values.items()}
    weights = frozenset(func.params[num_inputs(func) :])
    users, inputs = users_of(func), _inputs(func)
    known = tvm_ffi.convert(values)  # once per change: for every call it would take the square of the graph's size
    count = 0
    blocks = []
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            # Only calls: an alias `y = x` would match what x is bound to, a second time.
            is_call = isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.Call)
            is_call = is_call and (roots is None or op_name(binding.value) in roots)
            found = lift.pattern.extract_matched_expr(binding.value, known) if is_call else None
            if found is not None:
                try:
                    match = Match(found, variables, values, weights, users, inputs)
                    added, lifted = _typed(lift.build(match), binding.var.ty)
                except NoMatch:
                    pass
                except Rejected as reason:
                    at = reason.at if isinstance(reason.at, relax.Var) else binding.var
                    said = {"lift": lift.name, "node": _named(at, users).name, "reason": str(reason)}
                    rejected.append({**said, "var": at.name, "of": op_name(values[at])})
                else:
                    binding = relax.VarBinding(binding.var, lifted)
                    for new in (*added, binding):
                        values[new.var] = new.value
                        variables[new.value] = new.var
                    known = tvm_ffi.convert(values)
                    bindings += added
                    count += 1
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    if not count:
        return mod, 0
    # What a lift left unused must not count as a user for the next one.
    clean = tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.DeadCodeElimination()])
    return clean(replace_main(mod, with_blocks(func, blocks))), count


def _inputs(func: relax.Function) -> frozenset[relax.Var]:
    """The inputs of the model, and what they are called once their sizes are declared."""
    inputs = set(func.params[: num_inputs(func)])
    for binding in (b for block in func.body.blocks for b in block.bindings):  # casts to a shape, and aliases
        if isinstance(binding.value, relax.Var) and binding.value in inputs:
            inputs.add(binding.var)
    return frozenset(inputs)


def _roots(pattern: DFPattern) -> set[str] | None:
    """Names of the operators whose calls `pattern` may match; None: of any."""
    if isinstance(pattern, OrPattern):
        sides = [_roots(pattern.left), _roots(pattern.right)]
        return None if None in sides else sides[0] | sides[1]
    if (
        isinstance(pattern, CallPattern)
        and isinstance(pattern.op, ExprPattern)
        and isinstance(pattern.op.expr, tvm.ir.Op)
    ):
        return {pattern.op.expr.name}
    return None


def _typed(lifted: relax.Expr, expected: relax.Type) -> tuple[list[relax.VarBinding], relax.Expr]:
    """The bindings of a lift's nested calls and its last call; `Rejected` unless that has the type it replaces."""
    builder = relax.BlockBuilder()
    builder._begin_dataflow_block()
    try:
        lifted = builder.normalize(lifted)
    except (TypeError, ValueError) as reason:  # a type rule of an operator of ours, or of TVM
        raise Rejected(str(reason).strip()) from reason
    finally:
        added = list(builder._end_block().bindings)
    if not same_type(lifted.ty, expected):
        raise Rejected(f"the operator's result would be {lifted.ty}, expected {expected}")
    return added, lifted
