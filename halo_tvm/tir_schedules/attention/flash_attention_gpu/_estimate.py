"""What tile sizes should cost: products, exponentials, barriers, blocks that wait for one another.

Cycles of one multiprocessor. Only their order for one function is used, so one set of rates serves every level.
"""

from __future__ import annotations

from ....dimensions import itemsize_of
from ....targets.gpu_levels import GpuLevel
from ._plan import Plan

_TENSOR = 2048.0  # multiply-adds a cycle, over the bytes of an operand
_MULTIPLY = 96.0  # multiply-adds a cycle in float32
_SHARED = 128.0  # bytes a cycle
_EXPONENTIAL = 16.0  # a cycle
_ARITHMETIC = 96.0  # other instructions on one number a cycle
_ELEMENT = 10.0  # of them for one score
_STEP = 400.0  # barriers, the latency of what one warp waits for alone
_BLOCK = 3_000.0  # start, queries, first keys, results


def estimate(plan: Plan, gpu: GpuLevel, b: int, s: int, t: int) -> float:
    """Microseconds for `b` batch rows, `s` queries and `t` keys."""
    problem, decision = plan.problem, plan.decision
    resident = max(1, gpu.resident_blocks(plan.threads, plan.registers, plan.shared_bytes))
    steps = [_steps(plan, q0, s, t) for q0 in range(0, s, decision.block_q)]
    copies = b * problem.h
    busy, alone = _step(plan)
    # Blocks beside one another hide the latency of each other, and share the units.
    each = max(busy, (busy + alone) / resident)
    starting = _BLOCK / resident
    work = copies * sum(count * each + starting for count in steps) / gpu.multiprocessors
    longest = max(steps, default=0) * (busy + alone) + _BLOCK
    return max(work, longest) / (gpu.clock_ghz * 1e3)


def _steps(plan: Plan, q0: int, s: int, t: int) -> int:
    """Blocks of keys that the block of queries at `q0` sees."""
    problem, decision = plan.problem, plan.decision
    end = min(t, min(q0 + decision.block_q, s) + t - s) if problem.causal else t
    begin = max(0, q0 + t - s - problem.window + 1) // decision.block_k if problem.window else 0
    return max(0, -(-end // decision.block_k) - begin)


def _step(plan: Plan) -> tuple[float, float]:
    """Cycles in which a step keeps a unit busy, and those in which it waits."""
    decision, d = plan.decision, plan.problem.d
    elements = decision.block_q * decision.block_k
    softmax = elements / _EXPONENTIAL + (_ELEMENT * elements + decision.block_q * d) / _ARITHMETIC
    if plan.on_tensor_cores:
        # Every warp reads all keys and values, and its queries where it does not keep them.
        size = itemsize_of(plan.problem.dtype)
        read = 2 * decision.block_k * d * decision.warps + (0 if plan.keeps_queries else decision.block_q * d)
        return max(2 * elements * d * size / _TENSOR, read * size / _SHARED) + softmax, _STEP
    return 2 * elements * d / _MULTIPLY + softmax, _STEP
