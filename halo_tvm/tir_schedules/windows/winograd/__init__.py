"""Convolution by minimal filtering, channels last, every step of a block of tiles in the caches of one core.

Serves
    kernels that end in 3 x 3, or in 3, with strides and dilations of one there, any axes in front of these; symbolic
    sizes; float32, bytes with sums of int32; any number of element-wise stages over the same axes
Declines
    fewer channels than a vector has lanes; other types; a symbolic number of channels; padding that depends on sizes;
    bytes where an instruction multiplies four of them and adds up, or nothing multiplies pairs of words
References
    docs/kernels/convolution.md: measurements, and when the compiler chooses this way
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tvm import tirx

from ....errors import Declined
from ...blocks import written_out
from ...code.lanes import constant
from ...products.row_tiling import FEW_CORES, RowTiling, block_rows_for, least_of, slowest_core
from ...rule import Numbers, Rule
from ._nest import build
from ._problem import Problem, match

if TYPE_CHECKING:
    from ....targets import Target

__all__ = ["ConvolutionWinograd", "Cut"]


_LEAST_ROWS, _MOST_ROWS = 4, 64  # tiles of a block: a panel of weights is read once for them
_LATENCY, _LOADS_PER_CYCLE = 4.0, 2.0  # of a multiply-add; of a core
_OWN_BYTES_PER_CYCLE = 16.0  # of weights that one core reads first: from a cache of several cores


@dataclass(frozen=True)
class Cut:
    """How the products are cut. The width of the register tile is not here: the packed weight fixes it."""

    mr: int  # tiles of the image whose sums are in registers at once
    unroll: int  # steps of the sum per iteration of the inner loop
    block_rows: int  # tiles of the image of a task at least
    split: int = 1  # pieces of a panel's columns, each a panel of its own


class ConvolutionWinograd(Rule[Cut]):
    """Tiles are transformed, multiplied factor by factor and transformed back, block by block."""

    name = "convolution_winograd"
    Decision = Cut
    domains = {
        "mr": Numbers(1, 32),
        "unroll": Numbers(1, 16),
        "block_rows": Numbers(1, 256),
        "split": Numbers(1, 4),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Cut:
        problem = match(func, target.isa)
        most = _most_rows(problem, target)
        # Factors of a block and their products leave half of L2 to the weights that stream through.
        each = problem.factors * (4 // problem.arithmetic.group * problem.depth + 4 * problem.nr)
        block_rows = room = max(most, min(_MOST_ROWS, target.spec.l2_bytes // 2 // each))
        tiles = constant(problem.tiles)
        if tiles is None:
            return Cut(most, problem.arithmetic.unroll, block_rows)
        # Every core should have a block and a panel, unless blocks became too low to be worth the weights they read.
        wanted = -(-target.cores // problem.panels)
        block_rows = min(block_rows, max(_LEAST_ROWS, tiles // wanted))

        def cost(mr: int) -> float:
            heights = _rows(mr, block_rows, target).heights(tiles)
            return sum(-(-height // mr) for height in heights) * (mr + 0.5)

        usual = Cut(min(range(most, 0, -1), key=cost), problem.arithmetic.unroll, block_rows)
        return _shared_out(usual, problem, target, room)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Cut]:
        problem, first = match(func, target.isa), self.default(func, target)
        most = _most_rows(problem, target)
        heights = dict.fromkeys((first.mr, *range(max(1, most // 2), most + 1)))
        values = itertools.product(heights, (4, 2, 1, 8), (first.block_rows, 8, 16, 32, 64))
        splits = _splits(problem, target) if target.cores > FEW_CORES else []
        pieces = (replace(first, split=number) for number in splits)
        return tuple(dict.fromkeys([first, *(Cut(*fields) for fields in values), *pieces]))

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Cut) -> tirx.PrimFunc:
        self.check(decision)
        problem = match(func, target.isa)
        if decision.split not in _splits(problem, target):
            raise Declined(f"a panel of {problem.nr} columns in {decision.split} pieces is not served")
        problem = problem.split_into(decision.split)
        rows = _rows(decision.mr, decision.block_rows, target)
        return written_out(func, build(problem, rows, decision.unroll, target.lanes_f32))


def _most_rows(problem: Problem, target: Target) -> int:
    """The tallest tile whose sums, a step's weights and one broadcast value are in registers."""
    vectors = problem.nr // target.lanes_f32
    fits = (mr for mr in range(12, 1, -1) if problem.arithmetic.registers(mr, vectors) <= target.isa.vector_registers)
    return next(fits, 1)


def _splits(problem: Problem, target: Target) -> list[int]:
    """In how many pieces of whole vectors the columns of a panel may be cut."""
    vectors = problem.nr // target.lanes_f32
    return [pieces for pieces in range(1, vectors + 1) if vectors % pieces == 0]


def _shared_out(usual: Cut, problem: Problem, target: Target, room: int) -> Cut:
    """`usual` with other blocks, of up to `room` rows, where its tasks leave some of many cores without work."""
    tiles = constant(problem.tiles)
    if target.cores <= FEW_CORES or not tiles:
        return usual
    heights = range(_most_rows(problem, target), 0, -1)
    others = []
    for pieces in _splits(problem, target):
        found = block_rows_for(tiles, problem.split_into(pieces).panels, target.cores)
        low = (usual.block_rows, *(rows for rows in found if rows <= room))
        others += [Cut(mr, usual.unroll, rows, pieces) for rows in low for mr in heights]
    return least_of(usual, others, lambda cut: _cycles(cut, problem, tiles, target))


def _cycles(cut: Cut, problem: Problem, tiles: int, target: Target) -> float:
    """Of the slowest core: in vector steps of the products, and of reading the weights that they are of."""
    problem = problem.split_into(cut.split)
    heights = _rows(cut.mr, cut.block_rows, target).heights(tiles)
    shares = problem.shares(len(heights), target.cores)
    vectors = problem.nr // target.lanes_f32
    # With fewer sums than four, each waits for the one before.
    step = max(cut.mr * vectors, (cut.mr + vectors) / _LOADS_PER_CYCLE, _LATENCY)
    reading = 4 * problem.nr / _OWN_BYTES_PER_CYCLE
    panels = -(-problem.panels // shares)
    tasks = [panels * max(-(-height // cut.mr) * step, reading) for height in heights]
    return slowest_core(tasks, shares, target.cores)


def _rows(mr: int, block_rows: int, target: Target) -> RowTiling:
    return RowTiling(mr=mr, block_rows=block_rows, cores=target.cores, balance=False)
