"""Bindings in an order in which every symbolic dimension is defined before it is used.

TVM's fusion places a group by the values it reads; a group whose result has a dimension that a match_cast names
may then stand in front of that match_cast.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from .graph_pass import replace_main, with_blocks


def in_order(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with the bindings of main's blocks moved back where a dimension they use is defined later."""
    func = mod["main"]
    known = {var for param in func.params for var in relax.analysis.tir_vars_in_type(param.ty)}
    blocks = [_ordered(block, known) for block in func.body.blocks]
    if all(new.same_as(old) for new, old in zip(blocks, func.body.blocks)):
        return mod
    return replace_main(mod, with_blocks(func, blocks))


def _ordered(block: relax.BindingBlock, known: set[tirx.Var]) -> relax.BindingBlock:
    """`known`: the symbols that are there before the block; those that it defines join them."""
    seen: set[tirx.Var] = set()
    late: set[tirx.Var] = set()  # symbols that a cast of this block defines behind their first use
    defined: dict[relax.Binding, set[tirx.Var]] = {}  # by each cast, which names others again
    for binding in block.bindings:
        if isinstance(binding, relax.MatchCast):
            given = {*known, *relax.analysis.tir_vars_in_type(binding.value.ty)}
            defined[binding] = set(relax.analysis.tir_vars_in_type(binding.ty)) - given
            late |= defined[binding] & seen
            known |= defined[binding]
        seen |= _symbols(binding)
    if not late:
        return block
    order: list[relax.Binding] = []
    waiting: list[relax.Binding] = []
    missing: set[object] = set(late)  # symbols and variables that are not there yet

    def ready(binding: relax.Binding) -> bool:
        needed = {*_symbols(binding), *relax.analysis.free_vars(binding.value)}
        return missing.isdisjoint(needed)

    def place(binding: relax.Binding) -> None:
        order.append(binding)
        missing.discard(binding.var)
        if isinstance(binding, relax.MatchCast):
            missing.difference_update(relax.analysis.tir_vars_in_type(binding.ty))

    for binding in block.bindings:
        if not ready(binding):
            waiting.append(binding)
            missing |= {binding.var, *defined.get(binding, ())}
            continue
        place(binding)
        while (free := next((b for b in waiting if ready(b)), None)) is not None:
            waiting.remove(free)
            place(free)
    return type(block)([*order, *waiting])


def _symbols(binding: relax.Binding) -> set[tirx.Var]:
    """Symbols that `binding` uses; a cast defines those of its own type."""
    found = set(relax.analysis.tir_vars_in_type(binding.value.ty))
    if isinstance(binding.value, relax.Call):
        for arg in binding.value.args:
            if isinstance(arg, relax.Expr):
                found.update(relax.analysis.tir_vars_in_type(arg.ty) if not isinstance(arg, relax.GlobalVar) else ())
            elif isinstance(arg, tvm.ir.Expr) and not isinstance(arg, tvm.ir.GlobalVar):
                found.update(tirx.analysis.undefined_vars(arg))
    return found
