"""Products of two run-time matrices, in batches: a [..., m, k] @ b [..., k, n], and the stages fused behind them.

Serves
    float32; either operand transposed; b with the leading dimensions of a or none; any dimension symbolic; any number
    of element-wise stages over [..., m, n]
Declines
    no matmul block; another dtype; a block before the product; a stage that is not element-wise over the same axes
References
    docs/kernels/batched_matmul.md: measurements and how the defaults were chosen
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....errors import Declined
from ...blocks import written_out
from ...code.lanes import constant
from ...rule import Numbers, Rule, first_of_each
from ..row_tiling import FEW_CORES, block_rows_for, least_of
from ._estimate import cycles_per_column, estimate
from ._nest import build
from ._problem import Problem, match
from ._tiling import Tiling

if TYPE_CHECKING:
    from ....targets import Target

__all__ = ["BatchedMatmul", "Decision"]

_TALLEST = 12
_LEAST_ROWS = 8  # of a task: it packs its panel for all of them
_PAGE_BYTES = 4096  # rows so far apart share one set of L1, which holds one of them a way


@dataclass(frozen=True)
class Decision:
    """How one product is cut."""

    mr: int  # rows of the register tile
    vectors: int  # vectors of columns of the register tile; so many times the lanes are a panel of b
    block_rows: int  # rows of a task at least, for which it packs its panel once
    kc: int  # rows of b in a packed panel; more are packed piece by piece


class BatchedMatmul(Rule[Decision]):
    """Register tiles over panels of b that each task packs for itself."""

    name = "batched_matmul"
    Decision = Decision
    domains = {
        "mr": Numbers(1, 16),
        "vectors": Numbers(1, 4),
        "block_rows": Numbers(_LEAST_ROWS, 512),
        "kc": Numbers(16, 2048),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        problem = match(func)
        choices = _register_tiles(problem, target)
        mr, vectors = min(choices, key=lambda tile: cycles_per_column(problem, *tile, target.lanes_f32))
        usual = Decision(mr, vectors, block_rows=64, kc=512)
        sizes = [constant(extent) for extent in (*problem.batch, problem.m, problem.n, problem.k)]
        if target.cores <= FEW_CORES or not all(sizes):
            return usual
        # Lower blocks of rows, or narrower panels, where the usual ones would leave some of many cores without work.
        *batch, rows, columns, _ = (size or 0 for size in sizes)
        others = []
        for tile in dict.fromkeys(((mr, vectors), *choices)):
            panels = math.prod(batch) * -(-columns // (tile[1] * target.lanes_f32))
            least = block_rows_for(rows, panels, target.cores, _LEAST_ROWS)
            others += [Decision(*tile, min(usual.block_rows, height), usual.kc) for height in least]
        return least_of(usual, others, lambda cut: estimate(problem, _tiling(cut, target), {}))

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        """Register tiles that fit times blocks of rows times panels: some dozens."""
        problem = match(func)
        values = itertools.product(_register_tiles(problem, target), (32, 64, 128), (128, 256, 512, 1024))
        decisions = [self.default(func, target), *(Decision(*tile, rows, kc) for tile, rows, kc in values)]
        return tuple(first_of_each(decisions, lambda decision: _kernel(problem, _tiling(decision, target))))

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        return estimate(match(func), _tiling(decision, target), sizes)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        problem = match(func)
        if decision.kc % target.lanes_f32:
            raise Declined(f"kc is {decision.kc}, no multiple of the {target.lanes_f32} lanes of {target.isa.name}")
        return written_out(func, build(problem, _tiling(decision, target)))


def _tiling(decision: Decision, target: Target) -> Tiling:
    return Tiling(**dataclasses.asdict(decision), lanes=target.lanes_f32, cores=target.cores)


def _kernel(problem: Problem, t: Tiling) -> tuple[object, ...]:
    """What tells the kernels of two decisions apart: with known sizes many are one."""
    m, k = constant(problem.m), constant(problem.k)
    heights = t.block_rows if m is None else tuple(t.heights(m))
    return t.mr, t.vectors, heights, t.kc if k is None else min(t.kc, k)


def _register_tiles(problem: Problem, target: Target) -> list[tuple[int, int]]:
    """(mr, vectors) whose sums, one row of b and one broadcast value fit into registers; the tallest of each width."""
    k = constant(problem.k)
    apart = not problem.a_transposed and k is not None and 4 * k % _PAGE_BYTES == 0
    tallest = min(_TALLEST, target.spec.l1_bytes // _PAGE_BYTES) if apart else _TALLEST
    registers = target.isa.vector_registers
    heights = ((min(tallest, (registers - 1 - vectors) // vectors), vectors) for vectors in (1, 2, 3))
    return [(mr, vectors) for mr, vectors in heights if mr >= 4]
