"""Attention of few queries on a GPU: keys are split among blocks of threads, the parts merged by a second kernel.

Serves
    functions of `halo.attention` (attribute `halo.call`) in float16, bfloat16 and float32 on NVIDIA GPUs, with separate
    q, k, v and 1 to 8 queries, a number known when compiling; any b and t, symbolic or not; lengths as data, causality,
    window, soft cap, key mask, bias, grouped heads; head sizes that are multiples of 16 up to 256
Declines
    other operators, dtypes and head sizes; packed queries, keys and values; more queries, or a number that is known at
    run time only (`flash_attention_gpu` calls these kernels where it turns out to be 1); decisions that need more
    registers or shared memory than there are
Before -> after
    scores [b, h, s, t]; softmax; scores @ v      ->
    attend: a block of threads per batch row, KV head and part of the keys; 4 to 32 lanes read one key together, and
        each group of lanes has an online softmax of its own over its keys, for all query heads of the KV head
    merge: a block per row and batch row, a thread per column
    How many parts have keys, batch row by batch row, follows from their number at run time; other blocks end at once.
Numerics
    float32, whatever the operands are. Powers of two by the instruction, a relative error of 2**-22.
Measured
    not on a GPU; by emulation and as machine code
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....errors import Declined
from ....targets.gpu_levels import STATIC_SHARED_BYTES
from ...rule import Numbers, Rule, accepted, gpu_of
from .._function import scheduled_as
from .._grid import DTYPES
from .._problem import Problem, call_attributes, extents, read
from .._text import Source
from ..decode_attention.plan import few_queries
from ._attend import attend
from ._merge import merge
from ._plan import Decision, Plan
from .estimate import estimate

if TYPE_CHECKING:
    from ....targets import Target
    from ....targets.gpu_levels import GpuLevel

_MOST_REGISTERS = 200  # of 255: what the plan counts is not exact


class DecodeAttentionGPU(Rule[Decision]):
    """Split-KV attention for decode steps, as generated text."""

    name = "decode_attention_gpu"
    Decision = Decision
    domains = {
        "splits": Numbers(1, 256),
        "least_keys": Numbers(1, 4096),
        "warps": Numbers(1, 8),
        "keys": Numbers(1, 8),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        return preferred(*_served(func), gpu_of(target)).decision

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        """Most parts x least keys of a part x warps x keys that a lane reads at a time."""
        values = itertools.starmap(Decision, itertools.product((8, 16, 32, 64), (64, 128, 256), (2, 4, 8), (2, 4, 8)))
        fitting = accepted(values, lambda d: _plan(func, target, d))
        return tuple(dict.fromkeys([self.default(func, target), *fitting]))

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        (b, *_), t = extents(func, sizes)
        return estimate(_plan(func, target, decision), gpu_of(target), b, t)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        return scheduled_as(func, _plan(func, target, decision), split_attention, through_memory=False)


def preferred(problem: Problem, queries: int, gpu: GpuLevel) -> Plan:
    """The analytic choice for so many queries, or Declined."""
    piles = Plan(problem, queries, Decision(1, 1, 1, 1)).piles
    # One batch row fills the device twice; more of them need no parts, and have blocks that end at once.
    splits = max(1, min(64, -(-2 * gpu.multiprocessors // (problem.h_kv * piles))))
    values = (Decision(splits, least_keys=128, warps=4, keys=keys) for keys in (4, 2, 1))
    plans = (Plan(problem, queries, decision) for decision in values)
    found = next(accepted(plans, _check_limits), None)
    if found is None:
        raise Declined(f"heads of {problem.d} {problem.dtype} need more registers than are served")
    return found


def split_attention(src: Source, plan: Plan) -> None:
    """Both kernels, one after the other, and the memory between them."""
    with src.block("split"):
        attend(src, plan)
        merge(src, plan)


def _served(func: tirx.PrimFunc) -> tuple[Problem, int]:
    """The call and its number of queries, or Declined."""
    if call_attributes(func).get("packed"):
        raise Declined("serves separate q, k and v, not packed ones")
    count = few_queries(func)
    return read(func, DTYPES), count


def _plan(func: tirx.PrimFunc, target: Target, decision: Decision) -> Plan:
    gpu_of(target)
    problem, count = _served(func)
    plan = Plan(problem, count, decision)
    _check_limits(plan)
    return plan


def _check_limits(plan: Plan) -> None:
    if plan.shared_bytes > STATIC_SHARED_BYTES:
        raise Declined(f"warps of {plan.shared_bytes} bytes of results exceed the {STATIC_SHARED_BYTES} of a block")
    if plan.registers > _MOST_REGISTERS:
        raise Declined(f"about {plan.registers} registers a thread are needed, {_MOST_REGISTERS} are served")
