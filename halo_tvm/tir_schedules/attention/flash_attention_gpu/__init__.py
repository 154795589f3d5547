"""Attention on a GPU, block of keys by block of keys; scores and weights never leave a block of threads.

Serves
    functions of `halo.attention` (attribute `halo.call`) in float16, bfloat16 and float32 on NVIDIA GPUs: any b, s
    and t, symbolic or not, head sizes that are multiples of 16 up to 256, all attributes of the operator
Declines
    other operators, dtypes and head sizes; tiles that do not fit the level's shared memory or registers
Before -> after
    scores [b, h, s, t]; softmax; scores @ v      ->
    a kernel: a block of threads per batch row, head and block of queries, 16 or 32 queries a warp; keys and values
    through shared memory by asynchronous copies, each while the product before it is computed; blocks of keys that
    no query of the block sees are skipped
    A number of queries that is known at run time only, with q, k and v apart: where it is 1, the two kernels of
    `decode_attention_gpu`, by its analytic choice.
Numerics
    float16 and bfloat16: both products on tensor cores with float32 sums; weights are rounded to the operands' type
    between them. float32: multiply-adds in float32; where the call permits tf32, tensor cores with float32 sums, of
    operands (queries, keys, values, weights) rounded to nearest at 11 bits, at float32's range.
    Powers of two by the instruction, a relative error of 2**-22.
Measured
    not on a GPU; by emulation and as machine code
References
    arXiv:2307.08691
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....errors import Declined
from ...rule import Numbers, Rule, accepted, gpu_of
from .._function import scheduled_as
from .._grid import DTYPES
from .._problem import Problem, extents, read
from .._text import Source
from ..decode_attention_gpu import preferred, split_attention
from ..decode_attention_gpu.estimate import estimate as decode_estimate
from ._attend import attend
from ._estimate import estimate
from ._plan import Decision, Plan

if TYPE_CHECKING:
    from ....targets import Target
    from ....targets.gpu_levels import GpuLevel

_MOST_REGISTERS = 224  # of 255: what the plan counts is not exact, 232 spilled


class FlashAttentionGPU(Rule[Decision]):
    """FlashAttention-2 as generated text."""

    name = "flash_attention_gpu"
    Decision = Decision
    domains = {
        "block_q": Numbers(16, 256),
        "block_k": Numbers(16, 256),
        "warps": Numbers(1, 8),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        gpu, problem = gpu_of(target), _problem(func)
        found = next(accepted(_preferred(problem), lambda d: _plan(problem, d, gpu)), None)
        if found is None:
            raise Declined(f"no tile of heads of {problem.d} {problem.dtype} fits {target.isa.name}")
        return found

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        """Queries of a block x keys of a step x warps, as far as they fit."""
        gpu, problem = gpu_of(target), _problem(func)
        values = itertools.starmap(Decision, itertools.product((32, 64, 128), (16, 32, 64, 128), (2, 4, 8)))
        fitting = accepted(values, lambda d: _plan(problem, d, gpu))
        return tuple(dict.fromkeys([self.default(func, target), *fitting]))

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        gpu = gpu_of(target)
        (b, s, *_), t = extents(func, sizes)
        problem = _problem(func)
        if s == 1 and _may_decode(problem):
            return decode_estimate(preferred(problem, 1, gpu), gpu, b, t)
        return estimate(_plan(problem, decision, gpu), gpu, b, s, t)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        problem, gpu = _problem(func), gpu_of(target)
        plan = _plan(problem, decision, gpu)
        if not _may_decode(problem):
            return scheduled_as(func, plan, attend, through_memory=False)
        single = preferred(problem, 1, gpu)

        def by_queries(src: Source, plan: Plan) -> None:
            with src.under(f"if {problem.s} == T.int64(1):"):
                split_attention(src, single)
            with src.under("else:"):
                attend(src, plan)

        return scheduled_as(func, plan, by_queries, through_memory=False)


@functools.lru_cache(maxsize=16)  # a search asks for hundreds of estimates of one function
def _problem(func: tirx.PrimFunc) -> Problem:
    return read(func, DTYPES)


def _may_decode(problem: Problem) -> bool:
    """Whether one query, known at run time only, has keys enough to be worth other kernels."""
    return problem.static_s is None and not problem.packed


def _preferred(problem: Problem) -> tuple[Decision, ...]:
    """From the best to the one that needs least."""
    if problem.dtype == "float32" and not problem.tf32:
        large = Decision(64, 64, 4) if problem.d <= 64 else Decision(64, 32, 4)
        return large, Decision(32, 16, 2)
    if problem.dtype == "float32":
        return Decision(128, 64, 4) if problem.d <= 64 else Decision(64, 32, 4), Decision(64, 16, 4)
    # 32 rows a warp read keys and values half as often, and fit the registers of small heads.
    if problem.d <= 64:
        return (Decision(128, 64, 4),)
    return Decision(64, 64, 4) if problem.d <= 128 else Decision(64, 32, 4), Decision(32, 32, 2)


def _plan(problem: Problem, decision: Decision, gpu: GpuLevel) -> Plan:
    plan = Plan(problem, decision)
    rows = (16, 32) if plan.on_tensor_cores else (16,)
    if decision.block_q % decision.warps or plan.rows_per_warp not in rows:
        raise Declined(f"a warp has {' or '.join(map(str, rows))} queries, got {decision.block_q} of {decision.warps}")
    if decision.block_k % 16:
        raise Declined(f"block_k must be a multiple of 16 keys, got {decision.block_k}")
    if plan.shared_bytes > gpu.shared_bytes_per_block:
        raise Declined(f"tiles of {plan.shared_bytes} bytes exceed the {gpu.shared_bytes_per_block} of shared memory")
    if plan.registers > _MOST_REGISTERS:
        raise Declined(f"about {plan.registers} registers a thread are needed, {_MOST_REGISTERS} are served")
    return plan
