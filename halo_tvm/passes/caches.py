"""Where caches are written in place, and how fusion is kept from moving reads across it."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import ir, relax

from ..plain import plain
from ..relay_ops import OPERATORS
from ..relay_ops.operator import OPAQUE, RESHAPES, attrs_of, operator_of
from .graph_pass import bindings, op_name


def appended_caches(mod: tvm.IRModule, value: relax.Expr) -> list[relax.Expr]:
    """The caches that `value` writes into, before or after its lowering; none when it is no append."""
    operator, args = operator_of(value), getattr(value, "args", ())
    attrs = attrs_of(value) if operator is not None else {}
    if op_name(value) == "relax.call_tir_inplace":
        call = (mod[value.args[0]].attrs or {}).get("halo.call")
        operator, args = OPERATORS[str(call["op"])] if call is not None else None, value.args[1].fields
        attrs = plain(call) if call is not None else {}
    return [args[position] for position in operator.written_by(attrs).values()] if operator is not None else []


# Variable -> whose memory its value may lie in: variables, and constants.
Memory = Mapping[relax.Var, frozenset[relax.Expr]]


def memory_of(func: relax.Function) -> Memory:
    """Views, tuples, branches and other names share the memory of what they are made of; an append's result is new."""
    memory: dict[relax.Var, frozenset[relax.Expr]] = {}
    _bind(func.body, memory)
    return memory


def _bind(body: relax.SeqExpr, memory: dict[relax.Var, frozenset[relax.Expr]]) -> None:
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                _bind(binding.value.true_branch, memory)
                _bind(binding.value.false_branch, memory)
            memory[binding.var] = roots_of(binding.value, memory) or frozenset([binding.var])


def roots_of(value: relax.Expr, memory: Memory) -> frozenset[relax.Expr]:
    """The memory `value` lies in: none for an operator's call, whose result is its own.

    A function of Relax may return any of its arguments.
    """
    if isinstance(value, ir.GenericConst):
        return frozenset([value])
    if isinstance(value, relax.Var):
        return memory.get(value, frozenset([value]))
    match value:
        case relax.Tuple():
            parts = value.fields
        case relax.TupleGetItem():
            parts = [value.tuple_value]
        case relax.If():
            parts = [value.true_branch.body, value.false_branch.body]
        case relax.Call() if op_name(value) in RESHAPES:  # what they return may be the memory of their argument
            parts = value.args[:1]
        case relax.Call() if not isinstance(value.op, ir.Op):
            parts = value.args
        case _:
            parts = []
    return frozenset().union(*(roots_of(part, memory) for part in parts))


def written_in_place(func: relax.Function) -> frozenset[relax.Expr]:
    """The memory that calls of `func`, a lowered main, write in place: parameters, and variables of its own."""
    memory = memory_of(func)
    found: frozenset[relax.Expr] = frozenset()
    for block in func.body.blocks:
        for call in (binding.value for binding in block.bindings):
            if op_name(call) == "relax.call_tir_inplace":
                places = [int(place) for place in call.attrs.inplace_indices if int(place) >= 0]
                found = found.union(*(roots_of(call.args[1].fields[place], memory) for place in places))
    return found


def with_readers_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose functions that read a cache in front of its append are opaque to FuseOps.

    A group stands where its last function stood: a read that joined one behind the append would see what it wrote.
    """
    found = bindings(mod["main"])
    memory = memory_of(mod["main"])
    appended = [cache for b in found for cache in appended_caches(mod, b.value)]
    caches = frozenset().union(*(roots_of(cache, memory) for cache in appended))
    if not caches:
        return mod
    out = mod.clone()
    for binding in found:
        call = binding.value
        if op_name(call) == "relax.call_tir" and not caches.isdisjoint(roots_of(call.args[1], memory)):
            gvar = call.args[0]
            out.update_func(gvar, out[gvar].with_attr("op_pattern", OPAQUE))
    return out
