"""The net under every other rule: schedules any PrimFunc for a CPU, never declines, never raises.

Steps
    1. inline element-wise blocks into their readers, where that repeats no expensive work
    2. reductions: for i, j, k  ->  for i, k, j, so that the innermost loop runs along memory; the initial value
       in a loop of its own where there may be nothing to reduce
    3. parallel over the outer data-parallel loops of every block that is large enough
Leaves alone
    functions without a root block, functions that are scheduled already, opaque and scatter-like blocks
A step that TVM refuses for a block (ScheduleError) is left out there; the function stays valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm_ffi
from tvm import s_tir, tirx

from ..blocks import Block, blocks, calls, is_scheduled, loads
from ..rule import Rule, scheduled

if TYPE_CHECKING:
    from ...targets import Target


@dataclass(frozen=True)
class Decision:
    """The net has one way of doing things; `parallel_from` exists so that tests can force it on."""

    parallel_from: int  # least number of iterations of a block for which threads are started


class Fallback(Rule[Decision]):
    """Inline, order, parallelise; whatever cannot be done is left out."""

    name = "fallback"
    Decision = Decision

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        # A parallel loop costs about a microsecond to start: some thousand simple iterations.
        return Decision(parallel_from=1 << 13)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        if is_scheduled(func) or not isinstance(func.body, s_tir.SBlockRealize) or _has_marked_loops(func):
            return func.with_attr("tirx.is_scheduled", True)
        try:
            func = _scheduled_blocks(func, decision)
        except (RuntimeError, ValueError, TypeError):
            pass  # TVM has no schedule of such a function: as it is, it computes the same
        return func.with_attr("tirx.is_scheduled", True)


def _scheduled_blocks(func: tirx.PrimFunc, decision: Decision) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(func, error_render_level="none")
    _inline_all(schedule)
    for block in blocks(scheduled(schedule)):
        _schedule_block(schedule, block, decision)
    return scheduled(schedule)


def _attempt(step: Callable[[], object]) -> bool:
    """Run one Schedule step; False when TVM refuses it, which leaves the function as it was."""
    try:
        step()
    except s_tir.ScheduleError:
        return False
    return True


def _has_marked_loops(func: tirx.PrimFunc) -> bool:
    """Whether a loop is anything but serial: then somebody has decided already."""
    marked: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind != tirx.ForKind.SERIAL:
            marked.append(loop)

    tvm_ffi.structural_walk(func.body, (tirx.For, visit), order="post")
    return bool(marked)


def _inline_all(schedule: s_tir.Schedule) -> None:
    """Inline every intermediate element-wise block for which `_worth_inlining` holds."""
    tried: set[str] = set()
    while True:
        found = blocks(scheduled(schedule))
        todo = [b for b in found if b.node.name_hint not in tried and _worth_inlining(b, found)]
        if not todo:
            return
        name = todo[0].node.name_hint
        tried.add(name)
        if _unique(found, name):
            _attempt(lambda: schedule.compute_inline(schedule.get_sblock(name)))


def _worth_inlining(block: Block, all_blocks: list[Block]) -> bool:
    """Element-wise, and read once per element by element-wise blocks, or too cheap to be worth storing."""
    store = block.store
    if store is None or set(block.kinds) - {"S"} or block.op is not None:
        return False
    reads = [
        (reader, load)
        for reader in all_blocks
        if reader is not block
        for load in loads(reader.node.body)
        if load.source.same_as(store.buffer)
    ]
    if not reads:
        return False
    simple = not calls(store.value) and len(loads(store.value)) <= 1
    return simple or (len(reads) == 1 and not set(reads[0][0].kinds) - {"S"})


def _unique(found: list[Block], name: str) -> bool:
    return sum(b.node.name_hint == name for b in found) == 1


def _schedule_block(schedule: s_tir.Schedule, block: Block, decision: Decision) -> None:
    """Order the loops of one block and start threads over its outer spatial ones."""
    kinds = block.kinds
    if not block.plain or len(block.loops) != len(kinds) or "O" in kinds or _scatters(block):
        return
    if not _unique(blocks(scheduled(schedule)), block.node.name_hint):
        return
    handle = schedule.get_sblock(block.node.name_hint)
    loops = schedule.get_loops(handle)
    if not kinds.startswith("S"):
        if kinds.startswith("R") and _may_be_empty(block):
            _attempt(lambda: schedule.decompose_reduction(handle, loops[0]))
        return
    spatial = [loop for loop, kind in zip(loops, kinds) if kind == "S"]
    reduction = [loop for loop, kind in zip(loops, kinds) if kind == "R"]
    if len(spatial) > 1 and reduction and block.store is not None:
        _attempt(lambda: schedule.reorder(*spatial[:-1], *reduction, spatial[-1]))
        outer = spatial[:-1]
    elif len(spatial) > 1:
        outer = spatial[:-1]
    else:
        outer = spatial
    if _iterations(block) < decision.parallel_from:
        if reduction and _may_be_empty(block):
            _attempt(lambda: schedule.decompose_reduction(handle, reduction[0]))
        return
    if len(outer) > 1:
        fused: list[s_tir.schedule.LoopRV] = []
        if _attempt(lambda: fused.append(schedule.fuse(*outer))):
            outer = fused
    _attempt(lambda: schedule.parallel(outer[0]))
    if reduction:
        # Without the test for the first step inside, LLVM can vectorise the innermost loop.
        _attempt(lambda: schedule.decompose_reduction(handle, reduction[0]))


def _scatters(block: Block) -> bool:
    """Whether the place of a store depends on data: two iterations may then write the same element."""
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(block.node.body, (tirx.BufferStore, lambda store: stores.append(store)), order="post")
    return any(loads(index) for store in stores for index in store.indices)


def _may_be_empty(block: Block) -> bool:
    """Whether the reduction may have no steps: without steps, the initial value inside the loop is never stored."""
    return any(
        kind == "R" and not (isinstance(extent, tirx.IntImm) and int(extent.value) > 0)
        for kind, extent in zip(block.kinds, block.extents)
    )


def _iterations(block: Block) -> float:
    """Number of iterations; a symbolic extent counts as many."""
    return math.prod(int(e.value) if isinstance(e, tirx.IntImm) else 1024 for e in block.extents)
