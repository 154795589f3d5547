"""Inside fused functions: what is computed in front of a product becomes part of the expression that reads it.

Before -> after
    s = a * b[j];  y[i, j] = x[i, j] * s[j]             ->   y[i, j] = x[i, j] * (a * b[j])
    r = f(q);  p = x @ w;  y[i, j] = p[i, j] + r[i, j]  ->   p = x @ w;  y[i, j] = p[i, j] + f(q[i, j])
FuseOps puts such a block in front of a product, or of one loop nest over a tensor; rules schedule one nest with what
follows it. The few operations are repeated for every element, which costs less than another kernel.
Leaves alone
    blocks that read a reduction's result, write an output, or compute more than arithmetic, as roots and exponentials;
    those that would have grown long: written wherever it is read, a polynomial of a polynomial doubles at every step
    blocks that an operator marks as its parts: rules know the operator by them
"""

from __future__ import annotations

from contextlib import suppress

import tvm
from tvm import ir, s_tir, tirx
from tvm.sym import Analyzer

from ..tir_schedules.blocks import Block, blocks, calls, is_scheduled, length, loads
from ..tir_schedules.rule import scheduled

_LONGEST = 100  # expressions that one value is made of, with all that is written into it


def inline_small(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with the small blocks of its functions inlined."""
    changed = {}
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and not is_scheduled(func):
            names = _small(func)
            if names:
                # With sizes that follow from others TVM may not see that a block makes all that is read of it.
                with suppress(s_tir.ScheduleError):
                    changed[gvar] = _inlined(func, names)
    if changed:
        mod = mod.clone()
        for gvar, func in changed.items():
            mod.update_func(gvar, func)
    return mod


def _small(func: tirx.PrimFunc) -> list[str]:
    """Names of the blocks to inline: spatial, of parameters alone, small or in front of a product they do not feed."""
    found = blocks(func)
    if len(found) < 2 or any(block.store is None or block.realize is None for block in found):
        return []
    made: dict[ir.Var, int] = {}  # buffers of blocks that can be inlined, and how long the values are then
    names = []
    for position, block in enumerate(found):
        target, behind = block.store.buffer, found[position + 1 :]
        readers = [b for b in behind if any(load.source.same_as(target) for load in loads(b.store.value))]
        sources = [load.source for load in loads(block.store.value)]
        known = [*func.params, *made]
        written = length(block.store.value) + sum(made.get(source, 0) for source in sources)
        if (
            "R" not in block.kinds
            and "halo.part" not in block.node.annotations
            and not any(target.same_as(p) for p in func.params)
            and all(any(s.same_as(k) for k in known) for s in sources)
            and readers
            and (all(_wider(reader, block) for reader in readers) or _in_front(readers, behind))
            and not calls(block.store.value)
            and written <= _LONGEST
        ):
            made[target] = written
            names.append(block.node.name_hint)
    return names


def _wider(reader: Block, block: Block) -> bool:
    """Whether `reader` runs over more dimensions than 1 than `block`, or is small itself."""
    return _rank(reader) > _rank(block) or _rank(reader) == _rank(block) <= 1


def _in_front(readers: list[Block], behind: list[Block]) -> bool:
    """Whether a product runs between a block and its readers, which are none themselves."""
    return any("R" in block.kinds for block in behind) and not any("R" in reader.kinds for reader in readers)


def _rank(block: Block) -> int:
    return sum(not Analyzer().can_prove_equal(extent, 1) for extent in block.extents)


def _inlined(func: tirx.PrimFunc, names: list[str]) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(func)
    for name in names:
        schedule.compute_inline(schedule.get_sblock(name))
    return scheduled(schedule).with_attrs(func.attrs)
