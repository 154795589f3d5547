"""Where caches are written in place, and how fusion is kept from moving reads across it."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

from ..relay_ops._operator import OPAQUE
from ._pass import bindings, op_name


def appended_cache(mod: tvm.IRModule, value: relax.Expr) -> relax.Expr | None:
    """The cache that `value` writes into, before or after its lowering; None when it is no append."""
    if op_name(value) == "relax.halo.kv_append":
        return value.args[0]
    if op_name(value) == "relax.call_tir_inplace":
        call = (mod[value.args[0]].attrs or {}).get("halo.call")
        if call is not None and call["op"] == "kv_append":
            return value.args[1].fields[0]
    return None


# What they return may be the memory of their argument.
_VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
Memory = Mapping[relax.Var, frozenset[relax.Var]]  # variable -> whose memory its value may lie in


def memory_of(func: relax.Function) -> Memory:
    """Views, tuples and other names share the memory of what they are made of; an append's result is new."""
    memory: dict[relax.Var, frozenset[relax.Var]] = {}
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem):
                value = value.tuple_value
            elif op_name(value) in _VIEWS:
                value = value.args[0]
            same = roots_of(value, memory)
            memory[binding.var] = same or frozenset([binding.var])
    return memory


def roots_of(value: relax.Expr, memory: Memory) -> frozenset[relax.Var]:
    """The memory `value` lies in: none for a constant, and for a call, whose result is its own."""
    if isinstance(value, relax.Tuple):
        return frozenset().union(*(roots_of(field, memory) for field in value.fields))
    return memory.get(value, frozenset([value])) if isinstance(value, relax.Var) else frozenset()


def with_readers_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose functions that read a cache in front of its append are opaque to FuseOps.

    A group stands where its last function stood: a read that joined one behind the append would see what it wrote.
    """
    found = bindings(mod["main"])
    memory = memory_of(mod["main"])
    appended = [cache for b in found if (cache := appended_cache(mod, b.value)) is not None]
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
