"""GEMM with a packed weight: x [m, k] @ weight [k/kc, n/nr, kc, nr], and the stages fused behind it.

Serves
    float32 with weights in float32, bfloat16 or float16, and uint8 times int8 into int32; m symbolic or static; any
    number of element-wise stages over [m, n]; n cropped from the padded width; K chunks
Declines
    no linear block; a weight that is not packed; another dtype; x of rank 3 or more; a stage that is
    not element-wise over the same rows and columns; a block before the linear block
References
    docs/kernels/gemm.md: measurements and how the defaults were chosen
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import ir, tirx

from ....dimensions import by_name, size_of
from ....errors import Declined
from ...blocks import written_out
from ...rule import Numbers, Rule, first_of_each
from ..packing import pack_shape
from ..row_tiling import FEW_CORES, block_rows_for, least_of
from ._estimate import computing, estimate
from ._nest import build
from .chain import Chain, match
from .served import enough, served, vectors_of
from .tiling import Tiling

if TYPE_CHECKING:
    from ....targets import Target

__all__ = ["GEMM", "Decision", "pack_shape"]

_TYPICAL_ROWS = (32, 128, 512)  # where their number is not known: of more, any cut has enough tasks


@dataclass(frozen=True)
class Decision:
    """How one GEMM is cut. The width of the register tile is not here: the packed weight fixes it."""

    mr: int  # rows of the register tile
    unroll: int  # k steps per iteration of the inner loop
    prefetch: int  # cache lines of the next weight panel fetched per iteration; 0 = none
    block_rows: int  # rows of a block at least; tasks are row blocks x panels; 0 = all rows are one block
    balance: bool  # tiles of nearly equal height instead of full tiles and one short
    split: int = 1  # pieces of a panel's columns, each of tasks of its own


class GEMM(Rule[Decision]):
    """Register tiles over packed panels, tails of exactly their own height."""

    name = "gemm"
    version = 2  # row blocks by their rows, outermost
    Decision = Decision
    domains = {
        "mr": Numbers(1, 32),
        "unroll": Numbers(1, 16),
        "prefetch": Numbers(0, 48),
        "block_rows": Numbers(0, 4096),
        "split": Numbers(1, 4),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        chain = _match(func, target)
        unroll = _unroll(chain)
        usual = Decision(
            mr=_register_rows(chain, target),
            unroll=unroll,
            prefetch=chain.arithmetic.lines_ahead(unroll),
            block_rows=chain.arithmetic.block_rows,
            balance=True,
        )
        return _shared_out(usual, chain, target)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[Decision]:
        """Every combination of the values worth trying: some hundreds."""
        chain = _match(func, target)
        first = self.default(func, target)
        heights = chain.arithmetic.heights(chain.vectors(target.lanes_f32), target.isa.vector_registers)
        if chain.rows is not None:
            # A tile taller than the matrix is that of its rows.
            heights = sorted({min(mr, max(1, chain.rows)) for mr in heights})
        blocks = dict.fromkeys((first.block_rows, 0, 32, 64, 128, 256))
        cuts = [
            dataclasses.replace(first, mr=mr, block_rows=rows, balance=balance)
            for mr, rows, balance in itertools.product(heights, blocks, (True, False))
        ]
        unrolls = [steps for steps in chain.arithmetic.unrolls if chain.steps % steps == 0]
        found = (
            dataclasses.replace(cut, unroll=unroll, prefetch=prefetch)
            for cut, unroll, prefetch in itertools.product(
                _distinct(cuts, chain, target), unrolls, chain.arithmetic.prefetches
            )
        )
        splits = _splits(chain, target) if target.cores > FEW_CORES else []
        return tuple(dict.fromkeys([first, *found, *(dataclasses.replace(first, split=pieces) for pieces in splits)]))

    def estimate(
        self, func: tirx.PrimFunc, target: Target, decision: Decision, sizes: Mapping[ir.Var, int]
    ) -> float | None:
        chain = _match(func, target)
        rows = size_of(chain.m, by_name(sizes))
        chain = chain.split_into(decision.split)
        return estimate(chain, _tiling(decision, chain, target), rows, target.cores)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        self.check(decision)
        chain = _match(func, target)
        if chain.steps % decision.unroll:
            raise Declined(f"unroll {decision.unroll} does not divide the chunk of {chain.steps} k steps")
        if decision.split not in _splits(chain, target):
            raise Declined(f"a panel of {chain.nr} columns in {decision.split} pieces is not served")
        chain = chain.split_into(decision.split)
        return written_out(func, build(chain, _tiling(decision, chain, target)))


def _splits(chain: Chain, target: Target) -> list[int]:
    """In how many pieces of whole vectors the columns of a panel may be cut."""
    vectors = chain.vectors(target.lanes_f32)
    served = chain.arithmetic.splits and chain.parts == 1
    return [pieces for pieces in range(1, vectors + 1) if vectors % pieces == 0] if served else [1]


def _shared_out(usual: Decision, chain: Chain, target: Target) -> Decision:
    """`usual` with lower blocks of rows, or panels in pieces, where its tasks leave some of many cores without work.

    A core that has some columns of a few rows reads less of the weight than one that has a row of more columns.
    """
    if target.cores <= FEW_CORES:
        return usual
    sizes = _TYPICAL_ROWS if chain.rows is None else (max(1, chain.rows),)

    def cycles(cut: Decision) -> float:
        split, tiling = chain.split_into(cut.split), _tiling(cut, chain, target)
        return sum(computing(split, tiling, m, target.cores) / m for m in sizes)

    others = []
    for pieces in _splits(chain, target) if chain.rows else (1,):
        panels = chain.split_into(pieces).panels
        found = dict.fromkeys(rows for m in sizes for rows in block_rows_for(m, panels, target.cores))
        lower = (usual.block_rows, *(rows for rows in found if rows < usual.block_rows))
        others += [dataclasses.replace(usual, block_rows=rows, split=pieces) for rows in lower]
    return least_of(usual, others, cycles)


def _tiling(decision: Decision, chain: Chain, target: Target) -> Tiling:
    fields = dataclasses.asdict(decision)
    if fields.pop("split") > 1:
        fields["prefetch"] = 0  # the next panel may be of another core
    cut = Tiling(**fields, lanes=target.lanes_f32, cores=target.cores)
    return cut.with_few(chain.arithmetic)


def _distinct(cuts: Sequence[Decision], chain: Chain, target: Target) -> list[Decision]:
    """Of decisions that cut the rows into the same tiles the first; all of them where the number is symbolic."""
    rows = chain.rows
    if rows is None:
        return list(cuts)

    def kernel(cut: Decision) -> object:
        tiling = _tiling(cut, chain, target)
        blocks = tuple(tiling.heights(rows))
        return cut.mr, blocks, tuple(tuple(tiling.tile_heights(height)) for height in dict.fromkeys(blocks))

    return first_of_each(cuts, kernel)


@functools.lru_cache(maxsize=16)  # a search asks for hundreds of estimates of one function
def _match(func: tirx.PrimFunc, target: Target) -> Chain:
    chain = match(func, served(target.isa, tiles=True))
    chain = dataclasses.replace(chain, arithmetic=enough(chain.steps, chain.arithmetic, target.isa))
    vectors_of(chain.nr, chain.arithmetic, target)
    return chain


def _register_rows(chain: Chain, target: Target) -> int:
    return chain.arithmetic.tallest(chain.vectors(target.lanes_f32), target.isa.vector_registers)


def _unroll(chain: Chain) -> int:
    return max(steps for steps in range(1, chain.arithmetic.unroll + 1) if chain.steps % steps == 0)
