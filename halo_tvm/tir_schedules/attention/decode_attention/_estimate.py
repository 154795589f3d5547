"""What a division of the keys should cost: reading them, starting tasks and steps, merging, idle cores.

Only the order for one function counts, so one set of numbers serves every CPU with vectors.
"""

from __future__ import annotations

from ....dimensions import itemsize_of
from .plan import Plan

_BYTES_PER_CYCLE = 16.0
_CYCLES_PER_US = 3_000.0
_TASK = 1_500.0
_ROW = 60.0  # of one row in one step: across the lanes, rescaling
_EXPONENTIAL = 12.0  # a vector: polynomial, maximum, sum
_CACHE = 24 << 10  # bytes of scores and results that stay close


def estimate(plan: Plan, b: int, t: int, cores: int) -> float:
    """Microseconds for `b` batch rows of `t` keys."""
    problem, decision = plan.problem, plan.decision
    least = decision.least_keys
    splits = max(1, min(decision.splits, -(-t // (2 * least)) * 2))
    span = -(-t // (splits * plan.lanes)) * plan.lanes
    splits = -(-t // span)
    products = 2.0 * plan.rows * problem.d / plan.lanes  # one key
    reading = 2.0 * itemsize_of(problem.kept) * problem.h_kv * problem.d / _BYTES_PER_CYCLE
    far = 1.1 if 4 * plan.rows * (decision.chunk + problem.d) > _CACHE else 1.0
    steps = -(-span // decision.chunk)
    key = far * max(products + plan.rows * _EXPONENTIAL / plan.lanes, reading)
    task = _TASK + span * key + steps * plan.rows * _ROW
    rounds = -(-b * splits // cores)
    merging = b * plan.rows * splits * (20.0 + 2.0 * plan.columns)
    return (rounds * task + merging) / _CYCLES_PER_US
