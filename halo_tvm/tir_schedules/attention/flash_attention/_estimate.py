"""What tile sizes should cost: the inner loops of both products, the softmax between them, copies, idle cores.

Cycles of a core with two load ports and a fused multiply-add latency of four. Only their order for one
function is used, so one set of numbers serves every CPU with vectors.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...code import pair_dot
from ._tiles import SIDE
from .plan import Plan

_LATENCY = 4.0
_LOADS_PER_CYCLE = 2.0
_EXPONENTIAL = 12.0  # a vector: polynomial, maximum, sum
_ROW = 30.0  # of one row in one step: across the lanes, rescaling
_TILE = 20.0
_STEP = 100.0
_TASK = 300.0
_FAR = 1.15  # values that are not packed lie a row of all heads apart
_CYCLES_PER_US = 3_000.0


def estimate(plan: Plan, b: int, s: int, t: int, cores: int) -> float:
    """Microseconds for `b` batch rows, `s` queries and `t` keys."""
    problem, decision = plan.problem, plan.decision
    tasks = [_task(plan, q0, s, t) for q0 in range(0, s, decision.block_q)]
    copies = b * problem.h
    work = copies * sum(tasks)
    columns = problem.d / plan.lanes
    packing = b * problem.h_kv * t * columns * (4.0 + (2.0 if plan.packs_values else 0.0))
    rounds = -(-copies * len(tasks) // cores)
    # Threads take runs of tasks in which dear and cheap ones alternate: the mean decides.
    computing = max(work / cores, rounds * sum(tasks) / len(tasks))
    return (computing + packing / cores) / _CYCLES_PER_US


def _task(plan: Plan, q0: int, s: int, t: int) -> float:
    """Cycles of the block of queries at `q0` of one head."""
    problem, decision = plan.problem, plan.decision
    rows, size = min(decision.block_q, s - q0), decision.block_k
    end = min(t, q0 + rows + t - s) if problem.causal else t
    begin = max(0, q0 + t - s - problem.window + 1) // size * size if problem.window else 0
    return _TASK + sum(
        _step(plan, rows, min(size, end - first), q0 + t - s - first) for first in range(begin, end, size)
    )


def _step(plan: Plan, rows: int, valid: int, diagonal: int) -> float:
    """Cycles of one block of `valid` keys; row r of a causal block sees the keys up to `diagonal` + r."""
    problem, decision = plan.problem, plan.decision
    cycles, top = _STEP + rows * (_ROW + _EXPONENTIAL * -(-valid // plan.lanes)), 0
    for height in _heights(rows, decision.score_rows):
        seen = min(valid, max(0, diagonal + top + height)) if problem.causal else valid
        panels = -(-seen // plan.panel)
        cycles += panels * (plan.width * _inner(plan, height, decision.score_vectors) + _TILE)
        top += height
    for _, vectors in plan.value_groups:
        top = 0
        for height in _heights(rows, decision.value_rows):
            seen = min(valid, max(0, diagonal + top + height)) if problem.causal else valid
            far = 1.0 if plan.packs_values else _FAR
            words = seen / 2 if plan.pairs else seen
            cycles += far * words * _inner(plan, height, vectors) + 3.0 * height * vectors + _TILE
            top += height
    return cycles


def _heights(rows: int, height: int) -> Iterator[int]:
    """The row tiles of a block: full ones, then pairs, then a single row."""
    yield from [height] * (rows // height)
    rest = rows % height
    yield from [2] * (rest // 2)
    yield from [1] * (rest % 2)


def _inner(plan: Plan, rows: int, vectors: int) -> float:
    """Cycles of one step of a register tile; registers of two dimensions take 16 steps and 16 rows at once."""
    if plan.tiles:
        return rows * vectors / SIDE
    latency = pair_dot.LATENCY if plan.pairs else _LATENCY
    return max(float(rows * vectors), latency, (rows + vectors) / _LOADS_PER_CYCLE)
