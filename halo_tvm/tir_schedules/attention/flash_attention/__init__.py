"""Attention over blocks of keys with an online softmax; the score matrix never leaves the cache.

Serves
    functions of `halo.attention` (attribute `halo.call`) on float32 CPU vector targets, keys and values in float16 or
    int8, too: any b, s and t, symbolic or not, head sizes that are multiples of 16 up to 1024, all attributes of the
    operator
Declines
    other operators, dtypes and head sizes; targets without 8 or 16 float32 lanes
Before -> after
    scores [b, h, s, t]; softmax; scores @ v      ->
    pack: keys [b, h_kv, t/block_k, panels, d, panel], values [b, h_kv, t, d]      (parallel b * h_kv * key blocks)
    attend: queries x keys x values, block_k keys at a time                         (parallel b * h * query blocks)
Numerics
    float32, and where the call permits it and the target has vdpbf16ps or AMX, products of operands rounded to bfloat16
    that are added up in float32; weights below 2**-100 of the row's largest count as 2**-100; exp2 has a relative
    error of 2e-7
Measured
    docs/kernels/attention.md
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....errors import Declined
from ...code import pair_dot
from ...code.lanes import constant
from ...code.tile_registers import WHOLE_TEXT
from ...products.row_tiling import FEW_CORES, least_of
from ...rule import Numbers, Rule
from .._function import scheduled_as
from .._pack import allocate, pack
from .._problem import Problem, buffers_of, extents, read
from ._attend import attend
from ._estimate import estimate
from ._tiles import SIDE
from .plan import Decision, Plan

if TYPE_CHECKING:
    from ....targets import Target


CACHES = ("float16", "int8")  # widened in registers as they are read
WIDEST = 1024  # numbers of a head: the vector of a token that all heads read has 576
_LEAST_QUERIES = 8  # of a task: it reads all keys for them
_LONG = 1024  # keys from which values are packed; at 512 it makes no difference


class FlashAttention(Rule[Decision]):
    """Attention without a score matrix, as generated text."""

    name = "flash_attention"
    Decision = Decision
    domains = {
        "block_q": Numbers(1, 512),
        "block_k": Numbers(1, 512),
        "score_rows": Numbers(1, 16),
        "score_vectors": Numbers(1, 8),
        "value_rows": Numbers(1, 16),
        "value_vectors": Numbers(1, 8),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        problem = _problem(func)
        lanes = target_lanes(target)
        if lanes == 16:
            # A narrow panel of keys wastes little on the diagonal and on short calls; a wide block of them rescales
            # seldom. Packing values costs more than it brings until rows of them are read very often, or widened.
            usual = Decision(
                block_q=2 * SIDE if _tiles(problem, target) else 32,
                block_k=128 if problem.d <= 64 else 64,
                score_rows=4,
                score_vectors=2,
                value_rows=4,
                value_vectors=4,
                pack_values=_pairs(problem, target)
                or problem.kept != "float32"
                or (problem.static_t is not None and problem.static_t >= _LONG),
            )
        else:
            # 12 accumulators of 16 registers leave room for a broadcast and two loads.
            usual = Decision(block_q=48, block_k=64, score_rows=6, score_vectors=2, value_rows=6, value_vectors=2)
        return _shared_out(usual, func, target)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        """Register tiles of both products x blocks of queries and keys x whether values are packed."""
        first = self.default(func, target)
        if _tiles(_problem(func), target):
            cuts = [(q, k) for q in (SIDE, 2 * SIDE, 4 * SIDE) for k in (64, 96, 128, 256)]
            found = [dataclasses.replace(first, block_q=q, block_k=k) for q, k in cuts]
            return tuple(dict.fromkeys([first, *found]))
        shapes = ((4, 4), (6, 4), (8, 2), (4, 2)) if target_lanes(target) == 16 else ((6, 2), (4, 2), (2, 4), (3, 3))
        packings = (True,) if _pairs(_problem(func), target) else (True, False)
        found = [first]
        for score, value, q, k, packed in itertools.product(shapes, shapes, (16, 32, 48, 64), (64, 96, 128), packings):
            if k % (score[1] * target_lanes(target)) == 0:
                found.append(Decision(q, k, *score, *value, packed))
        return tuple(dict.fromkeys(found))

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        plan = _plan(_problem(func), decision, target)
        (b, s, *_), t = extents(func, sizes)
        return estimate(plan, b, s, t, target.cores)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        plan = _plan(_problem(func), decision, target)
        imports = (pair_dot.TEXT if plan.pairs else "") + (WHOLE_TEXT if plan.tiles else "")
        return scheduled_as(func, plan, allocate, pack, attend, imports=imports)


def _shared_out(usual: Decision, func: tirx.PrimFunc, target: Target) -> Decision:
    """`usual` with shorter blocks of queries where its tasks would leave some of many cores without work."""
    problem, batch = _problem(func), constant(buffers_of(func)[0].ty.shape[0])
    s, t = problem.static_s, problem.static_t
    if target.cores <= FEW_CORES or not (batch and s and t):
        return usual
    unit = SIDE if _tiles(problem, target) else usual.score_rows
    sizes = [size for size in range(unit, usual.block_q, unit) if size >= _LEAST_QUERIES]
    others = [dataclasses.replace(usual, block_q=size) for size in reversed(sizes)]
    return least_of(usual, others, lambda cut: estimate(_plan(problem, cut, target), batch, s, t, target.cores))


@functools.lru_cache(maxsize=16)  # a search asks for hundreds of estimates of one function
def _problem(func: tirx.PrimFunc) -> Problem:
    return read(func, caches=CACHES, sinks=True, widest=WIDEST)


def target_lanes(target: Target) -> int:
    if target.lanes_f32 not in (8, 16):
        raise Declined(f"serves targets with 8 or 16 float32 lanes, {target.key} has {target.lanes_f32}")
    return target.lanes_f32


def _pairs(problem: Problem, target: Target) -> bool:
    """Whether both products take pairs of bfloat16; heads that are no whole number of them stay in float32."""
    isa = target.isa
    return problem.narrow and (isa.bf16_dot or isa.tiles) and problem.d % (2 * pair_dot.LANES) == 0


def _tiles(problem: Problem, target: Target) -> bool:
    """Whether they take them in registers of two dimensions."""
    return _pairs(problem, target) and target.isa.tiles


def _plan(problem: Problem, decision: Decision, target: Target) -> Plan:
    pairs, tiles = _pairs(problem, target), _tiles(problem, target)
    plan = Plan(problem, decision, target_lanes(target), pairs, tiles)
    assert not plan.pairs or plan.lanes == pair_dot.LANES, f"{target.key} pairs in other vectors than its floats"
    if plan.pairs and decision.block_k % (2 * plan.lanes):
        raise Declined(f"block_k must be a multiple of {2 * plan.lanes} keys in pairs, got {decision.block_k}")
    if plan.tiles and (decision.block_q % SIDE or plan.panel != SIDE):
        raise Declined(f"expected queries in {SIDE} and panels of {SIDE} keys, got {decision.block_q} and {plan.panel}")
    if plan.decision.block_k % plan.panel:
        raise Declined(f"block_k must be a multiple of the panel of {plan.panel} keys, got {plan.decision.block_k}")
    return plan
