"""A cache that was appended to in place is read only through the append's result.

`halo.kv_append` writes into its first argument. Relax takes calls for pure, so nothing else would notice a graph
that reads the old value afterwards, or writes into a weight, and computes something different in silence.
The check stands behind every pass that moves or merges calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm import ir, relax

from ..errors import UnsupportedModel
from .caches import appended_caches, memory_of, roots_of
from .graph_pass import Context, Pass, Report
from .weights import num_inputs


@dataclass(frozen=True)
class CheckCaches(Pass):
    """No use of a cache's old value behind the append."""

    name = "check_caches"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and gvar.name_hint != "main":
                refuse_inside(mod, func)
        return mod, {"appends": _check(mod, mod["main"])}


def _check(mod: tvm.IRModule, func: relax.Function) -> int:
    """How many appends `func` makes; `UnsupportedModel` for one that changes what somebody else reads."""
    memory = memory_of(func)
    written: dict[relax.Expr, str] = {}  # memory -> the append's result
    weights = set(func.params[num_inputs(func) :])
    appends = 0

    def check_use(used: Iterable[relax.Var], where: str) -> None:
        for var in used:
            for root in roots_of(var, memory) & written.keys():
                raise UnsupportedModel(
                    f"expected every use of a cache behind halo.kv_append to take its result {written[root]}, "
                    f"found {var.name} in {where}, which is the cache before it, overwritten in place: "
                    f"use {written[root]} there"
                )

    for block in func.body.blocks:
        for binding in block.bindings:
            value, name = binding.value, binding.var.name
            check_use(relax.analysis.free_vars(value), name)
            caches = appended_caches(mod, value)
            if not caches:
                refuse_inside(mod, value)
                continue
            appends += len(caches)
            roots = frozenset().union(*(roots_of(cache, memory) for cache in caches))
            if any(root in weights or isinstance(root, ir.GenericConst) for root in roots):
                raise UnsupportedModel(
                    f"expected the cache of halo.kv_append ({name}) to be an input or computed, found a constant or a "
                    "weight, which it would overwrite: make the cache an input of the model"
                )
            written.update(dict.fromkeys(roots, name))
    check_use(relax.analysis.free_vars(func.body.body), "the result")
    return appends


def refuse_inside(mod: tvm.IRModule, expr: relax.Expr) -> None:
    """Branches and loops may run an append any number of times: main alone says when a cache changes."""

    found: list[relax.Call] = []

    def visit(inner: relax.Expr) -> None:
        if isinstance(inner, relax.Call) and isinstance(inner.op, ir.Op) and appended_caches(mod, inner):
            found.append(inner)

    relax.analysis.post_order_visit(expr, visit)
    if found:
        raise UnsupportedModel(
            "expected halo.kv_append in the main function, found it in a branch, a loop or another function: "
            "move it out"
        )
