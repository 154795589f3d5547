"""What a division of the keys should cost: reading them with as many loads under way, starting blocks, merging.

Only the order for one function counts.
"""

from __future__ import annotations

from ....dimensions import itemsize_of
from ....targets.gpu_levels import GpuLevel
from ._plan import Plan

_LATENCY_US = 0.8  # of a load from memory
_BLOCK_US = 2.0  # start, queries, joining warps
_MERGE_US = 3.0  # the second kernel
_PART_US = 0.05  # of it, one part after another
_MULTIPLY = 64.0  # multiply-adds a cycle and multiprocessor, with the conversions around them


def estimate(plan: Plan, gpu: GpuLevel, b: int, t: int) -> float:
    """Microseconds for `b` batch rows of `t` keys."""
    problem, decision = plan.problem, plan.decision
    least = -(-decision.least_keys // plan.step) * plan.step
    span = max(least, -(-t // (decision.splits * plan.step)) * plan.step)
    parts = max(1, -(-t // span))
    blocks = b * problem.h_kv * plan.piles * parts
    waves = -(-blocks // gpu.blocks_at_once(plan.threads, plan.registers, plan.shared_bytes))
    waiting = waves * (_BLOCK_US + -(-span // plan.step) * _LATENCY_US)
    read_bytes = 2.0 * b * t * problem.h_kv * problem.d * itemsize_of(problem.dtype)
    reading = read_bytes / (gpu.memory_gbps * 1e3)
    busy = min(blocks, gpu.multiprocessors)
    multiplying = 2.0 * b * plan.rows * t * problem.d / (busy * _MULTIPLY * gpu.clock_ghz * 1e3)
    return max(waiting, reading, multiplying) + _MERGE_US + parts * _PART_US
