"""Experts of a mixture over packed weights: rows sorted by expert, then the register tiles of the packed GEMM.

Serves
    functions of `halo.experts` (attribute `halo.call`) with packed weights in float32, bfloat16, float16, or integers
    of eight or four bits in groups; any number of rows, known or not
Declines
    other operators; weights that are not packed; types that the target has no arithmetic for
Before -> after
    for i, t, j, k: y[i, t, j] += x[i, k] * weight[ids[i, t], j, k]   ->
    sort the pairs (i, t) by expert; parallel for (rows of an expert, panel): tiles of rows x nr sums in registers
    Few rows read the panels of their experts once each, in the order of memory; many rows share them.
Numerics
    as the packed GEMM of the same types
Measured
    docs/kernels/experts.md
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import tirx

from ....errors import Declined
from ...blocks import is_scheduled, written_out
from ...rule import Numbers, Rule
from ..gemm.served import enough, served, vectors_of
from ..gemm.tiling import Tiling
from ._nest import build
from ._problem import Problem, read

if TYPE_CHECKING:
    from ....targets import Target

_BLOCK_ROWS = 64  # as of the packed GEMM: a panel is read often enough from the cache


@dataclass(frozen=True)
class Cut:
    """How the rows of an expert are cut."""

    mr: int  # rows of the register tile
    unroll: int  # k steps per iteration of the inner loop
    block_rows: int  # most rows of a task


class ExpertsNest(Rule[Cut]):
    """Experts as packed GEMMs over sorted rows."""

    name = "experts"
    Decision = Cut
    domains = {
        "mr": Numbers(1, 32),
        "unroll": Numbers(1, 16),
        "block_rows": Numbers(1, 512),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Cut:
        problem = _problem(func, target)
        steps = int(problem.weight.ty.shape[2])
        unroll = max(count for count in range(1, problem.arithmetic.unroll + 1) if steps % count == 0)
        return Cut(_register_rows(problem, target), unroll, _BLOCK_ROWS)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Cut]:
        """Rows of tiles and of tasks, steps per iteration."""
        problem, first = _problem(func, target), self.default(func, target)
        steps = int(problem.weight.ty.shape[2])
        vectors = vectors_of(problem.nr, problem.arithmetic, target)
        heights = problem.arithmetic.heights(vectors, target.isa.vector_registers)
        found = [
            dataclasses.replace(first, mr=mr, unroll=unroll, block_rows=rows)
            for mr in heights
            for unroll in (1, 2, 4, 8)
            if steps % unroll == 0
            for rows in (32, 64, 128)
        ]
        return tuple(dict.fromkeys([first, *found]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Cut) -> tirx.PrimFunc:
        self.check(decision)
        problem = _problem(func, target)
        if int(problem.weight.ty.shape[2]) % decision.unroll:
            raise Declined(f"unroll {decision.unroll} does not divide the chunk of {problem.weight.ty.shape[2]} steps")
        return written_out(func, build(problem, _tiling(decision, problem, target)))


def _tiling(decision: Cut, problem: Problem, target: Target) -> Tiling:
    cut = Tiling(
        mr=decision.mr,
        block_rows=decision.block_rows,
        cores=target.cores,
        lanes=target.lanes_f32,
        unroll=decision.unroll,
        prefetch=0,
    )
    return cut.with_few(problem.arithmetic)


def _problem(func: tirx.PrimFunc, target: Target) -> Problem:
    if is_scheduled(func):
        raise Declined("the function is scheduled already")
    problem = read(func, served(target.isa, tiles=True))
    steps = int(problem.weight.ty.shape[2])
    problem = dataclasses.replace(problem, arithmetic=enough(steps, problem.arithmetic, target.isa))
    vectors_of(problem.nr, problem.arithmetic, target)
    return problem


def _register_rows(problem: Problem, target: Target) -> int:
    vectors = vectors_of(problem.nr, problem.arithmetic, target)
    return problem.arithmetic.tallest(vectors, target.isa.vector_registers)
