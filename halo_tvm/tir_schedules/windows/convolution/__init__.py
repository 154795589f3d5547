"""Convolution with packed weights, channels last, as products that read their rows through the window.

Serves
    one or more spatial axes, any of them symbolic; groups, strides, dilations, padding, kernels larger than the image;
    float32, and float16 or bfloat16 that is widened once; float32 that is rounded once, times pairs of bfloat16, where
    an instruction multiplies them; uint8 times int8 in int32, four channels a step;
    any number of element-wise stages over the same axes
Tiles
    of windows that lie anywhere (`_nest`); of groups with few channels along rows (`_along_rows`); in AMX's registers
    (`_tiles`)
Declines
    a weight that is not packed as [groups, panels, window * channels, nr], bytes in groups of four, bfloat16 in pairs;
    groups abreast whose rows of windows have an open length;
    other types; a symbolic number of channels; padding that depends on sizes; blocks in front of the windows except
    their padding
References
    docs/kernels/convolution.md: measurements and how the defaults were chosen
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import tirx

from ...blocks import written_out
from ...code.lanes import constant
from ...products.gemm.amx import InTiles
from ...products.gemm.float32 import Float32
from ...products.row_tiling import RowTiling
from ...rule import Numbers, Rule
from ._nest import build
from ._problem import Problem, match, tallest_along_rows

if TYPE_CHECKING:
    from ....targets import Target

__all__ = ["Convolution", "Decision", "match", "tallest_along_rows"]

_MULTIPLIES_BY_MEMORY = "x86_64"


@dataclass(frozen=True)
class Decision:
    """How one convolution is cut. The width of the register tile is not here: the packed weight fixes it."""

    mr: int  # windows of the register tile
    unroll: int  # steps of the sum per iteration of the inner loop
    block_rows: int  # windows of a task at least


class Convolution(Rule[Decision]):
    """Register tiles of windows times packed panels; no matrix of windows is written."""

    name = "convolution"
    Decision = Decision
    domains = {
        "mr": Numbers(1, 32),
        "unroll": Numbers(1, 16),
        "block_rows": Numbers(8, 1024),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        problem = match(func, target.isa)
        mr = _tile_rows(problem, target)
        return Decision(mr, _unroll(problem, target, mr), block_rows=problem.arithmetic.block_rows)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        problem, first = match(func, target.isa), self.default(func, target)
        if isinstance(problem.arithmetic, InTiles):
            cuts = itertools.product(problem.arithmetic.heights(0, 0), (128, 32, 64, 256))
            return tuple(dict.fromkeys([first, *(Decision(mr, first.unroll, rows) for mr, rows in cuts)]))
        most = problem.along_rows(target.isa) or _most_rows(problem, target)
        heights = dict.fromkeys((first.mr, *range(max(1, most // 2), most + 1)))
        values = itertools.product(heights, (4, 1, 2, 8), (64, 32, 128, 256))
        return tuple(dict.fromkeys([first, *(Decision(*fields) for fields in values)]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        problem = match(func, target.isa)
        rows = _rows(decision.mr, decision.block_rows, target)
        along = problem.along_rows(target.isa)
        body = build(problem, rows, decision.unroll, target.lanes_f32, target.spec.l2_bytes, along)
        return written_out(func, body)


def _unroll(problem: Problem, target: Target, mr: int) -> int:
    """Steps per iteration; of floats one where the values of more find no registers beside the sums.

    x86 multiplies by a value in memory. Elsewhere LLVM first loads those of all steps, a register for each window.
    """
    arithmetic, vectors = problem.arithmetic, problem.nr // target.lanes_f32
    if not isinstance(arithmetic, Float32) or target.spec.machine == _MULTIPLIES_BY_MEMORY:
        return arithmetic.unroll
    return arithmetic.unroll if arithmetic.registers(mr, vectors) + mr <= target.isa.vector_registers else 1


def _most_rows(problem: Problem, target: Target) -> int:
    """The tallest tile whose sums, a step's weights, one broadcast value and addresses are in registers."""
    vectors, registers = problem.nr // target.lanes_f32, target.isa.vector_registers
    if isinstance(problem.arithmetic, InTiles):
        return problem.arithmetic.tallest(vectors, registers)
    most = 8 if vectors > 2 else 12
    return next((mr for mr in range(most, 1, -1) if problem.arithmetic.registers(mr, vectors) <= registers), 1)


def _tile_rows(problem: Problem, target: Target) -> int:
    """The height that computes the fewest windows twice, the taller of equals."""
    if most := problem.along_rows(target.isa):
        width = constant(problem.windows.places[-1])
        return min(range(most, max(1, most // 2), -1), key=lambda mr: -(-width // mr) * (mr + 1.5))
    most, rows = _most_rows(problem, target), constant(problem.windows.rows)
    if rows is None or isinstance(problem.arithmetic, InTiles):
        return most

    def cost(mr: int) -> float:
        # A step of a tile loads a panel's row beside its own values.
        return sum(-(-height // mr) for height in _rows(mr, problem.arithmetic.block_rows, target).heights(rows)) * (
            mr + 0.5
        )

    return min(range(most, max(1, most - 4) - 1, -1), key=cost)


def _rows(mr: int, block_rows: int, target: Target) -> RowTiling:
    """Blocks end where full tiles end, so that only the last tile of all computes windows twice."""
    return RowTiling(mr=mr, block_rows=block_rows, cores=target.cores, balance=False)
