"""Attention of few queries over many keys: the keys are split among tasks and the parts merged at the end.

Serves
    functions of `halo.attention` (attribute `halo.call`) on float32 CPU vector targets with separate q, k, v, the last
    two in float16 or int8, too, and 1 to 8 queries, a number known when compiling; any b and t, symbolic or not;
    lengths as data, causality, window, soft cap, bias, grouped heads; head sizes that are multiples of 16 up to 1024
Declines
    other operators, dtypes and head sizes; packed queries, keys and values; key masks; more queries, or a number
    that is known at run time only; targets without 8 or 16 float32 lanes
Before -> after
    scores [b, h, s, t]; softmax; scores @ v      ->
    attend: a chunk of keys at a time: scores of all heads, softmax, values           (parallel b * splits of the keys)
    merge: the parts of every row, weighted by their largest score                   (parallel b * h * s)
    Every key and value is read once, in the order it lies in memory, for all heads of its group.
Numerics
    float32, as flash_attention
Measured
    docs/kernels/attention.md
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....errors import Declined
from ...code.lanes import constant
from ...rule import Numbers, Rule
from .._function import scheduled_as
from .._problem import Problem, buffers_of, call_attributes, extents, read
from ..flash_attention import CACHES, WIDEST, target_lanes
from ._attend import attend
from ._estimate import estimate
from ._merge import merge
from .plan import Decision, Plan, few_queries

if TYPE_CHECKING:
    from ....targets import Target

_SHORTEST = 16  # keys of a part: a tile of the widest vectors
_MANY_CORES = 16  # for more, parts are that short where their products are worth a task
_LEAST_PRODUCTS = 20_000
_SCORES_BYTES = 16 << 10  # of one chunk: they stay in the first-level cache beside the results


class DecodeAttention(Rule[Decision]):
    """Split-KV attention for decode steps, as generated text."""

    name = "decode_attention"
    Decision = Decision
    domains = {
        "chunk": Numbers(16, 1024),
        "splits": Numbers(1, 256),
        "least_keys": Numbers(_SHORTEST, 4096),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        chunk = 64
        plan = _plan(func, target, Decision(chunk, splits=16, least_keys=64))
        if 4 * plan.rows * chunk > _SCORES_BYTES:
            chunk = 32
        # Two tasks are enough for two cores, and a part of 128 keys costs 3 % less than two of 64.
        least = min(128, max(32, 256 // target.cores))
        if target.cores > _MANY_CORES and 2 * plan.rows * plan.problem.d * _SHORTEST >= _LEAST_PRODUCTS:
            least = _SHORTEST
        batch = buffers_of(func)[0].ty.shape[0]
        # Every core should have a part, and an open batch is one row.
        splits = -(-target.cores // max(1, constant(batch) or 1))
        return Decision(chunk, splits=min(256, max(16, splits)), least_keys=least)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        """Keys per step x most parts x least keys of a part."""
        first = self.default(func, target)
        found = [first]
        for chunk, splits, least in itertools.product((32, 64, 128, 256), (4, 16, 64), (32, 64, 128)):
            found.append(Decision(chunk, splits, least))
        return tuple(dict.fromkeys(found))

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        plan = _plan(func, target, decision)
        (b, *_), t = extents(func, sizes)
        return estimate(plan, b, t, target.cores)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        return scheduled_as(func, _plan(func, target, decision), attend, merge)


def _plan(func: tirx.PrimFunc, target: Target, decision: Decision) -> Plan:
    lanes = target_lanes(target)
    queries = _queries(func)
    problem: Problem = read(func, caches=CACHES, sinks=True, widest=WIDEST)
    if decision.chunk % lanes:
        raise Declined(f"chunk must be a multiple of the {lanes} keys of a tile, got {decision.chunk}")
    return Plan(problem, queries, decision, lanes)


def _queries(func: tirx.PrimFunc) -> int:
    """How many there are, or Declined."""
    attrs = call_attributes(func)
    for key, what in (("packed", "separate q, k and v, not packed ones"), ("has_key_mask", "lengths, not key masks")):
        if attrs.get(key):
            raise Declined(f"serves {what}")
    return few_queries(func)
