"""The arithmetics whose tiles are computed in AMX's registers, which `code/tile_registers.py` describes.

Weights are packed as for vectors. Few rows of bytes are multiplied in vectors: they read no less of the weight, and
one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from tvm import DataType, ir

from ...code.prefetch import CACHE_LINE_BYTES, prefetch
from ...code.tile_registers import ROWS, Matrix, Product, multiply
from .arithmetic import Arithmetic
from .bf16 import BFloat16Pairs
from .w8a8 import DotBytes

if TYPE_CHECKING:
    from .chain import Chain
    from .tile import Pass
    from .tiling import Tiling

_LINES_AHEAD = 16  # of the next panel, for 16 steps of the present one
_MOST_ROWS_AHEAD = 4
_L1 = 3  # locality of a prefetch


class InTiles(Arithmetic):
    """What both have in common: any height from one code, up to two registers."""

    instruction: ClassVar[str]
    of_step: ClassVar[int]  # elements of the operand x that a step takes
    few_rows: ClassVar[int] = 0  # a tile of so many is faster in vectors
    few_block_rows: ClassVar[int] = 0  # and all tiles of a block of so many, which are then no taller than few_rows
    block_rows = 128
    prefetches = (0, 8, 16, 24, 48)

    def lines_ahead(self, unroll: int) -> int:
        return _LINES_AHEAD

    def tallest(self, vectors: int, registers: int) -> int:
        return 2 * ROWS

    def heights(self, vectors: int, registers: int) -> tuple[int, ...]:
        return ROWS, 2 * ROWS

    def instructions(self, rows: int, vectors: int) -> float:
        """A product takes a cycle for each of its rows, and is 16 steps."""
        return rows * vectors / ROWS

    def loads(self, rows: int, vectors: int) -> float:
        return rows / ROWS + vectors * (2 - 1 / vectors if rows > ROWS else 1)

    def tile(self, chain: Chain, t: Tiling, p: Pass, rows: ir.Expr, heights: Sequence[int], continued: bool) -> None:
        """Emit scratch[:rows] (+)= x[start : start + rows, chunk] @ weight[chunk, panel], `rows` one of `heights`.

        `continued`: sums of earlier chunks are in the scratch tile already.
        """
        first = p.chunk * chain.steps

        def ahead(iteration: ir.Expr, iterations: int) -> None:
            prefetch_panel(chain, t, p, iteration)
            if t.prefetch:
                _prefetch_output(chain, t, p, iteration, iterations)

        product = Product(
            self.instruction,
            x=Matrix(
                lambda row, step: p.operands.x[p.start + row, (first + step) * self.of_step],
                4 * chain.chunks * chain.steps,
            ),
            weight=Matrix(lambda step, column: chain.weight[p.chunk, p.panel, step, column, 0], 4 * chain.nr),
            sums=Matrix(lambda row, column: p.scratch[row, p.column + column], 4 * int(p.scratch.ty.shape[1])),
            steps=chain.steps,
            columns=chain.nr,
            ahead=ahead,
        )
        multiply(product, rows, heights, continued=continued)


class TileBytes(InTiles, DotBytes):
    instruction = "tdpbusd"
    least_steps = 64  # tiles are stored and read again: below 256 k that takes longer than what is saved
    of_step = 4
    few_rows = 4


class TilePairs(InTiles, BFloat16Pairs):
    instruction = "tdpbf16ps"
    unroll, unrolls = 1, (1,)  # nothing of it is in vectors
    least_steps = ROWS
    of_step = 1


def prefetch_panel(chain: Chain, t: Tiling, p: Pass, iteration: ir.Expr) -> None:
    """Fetch the lines of the next panel that fall to iteration number `iteration` of a pass over this one."""
    for q in range(t.prefetch):
        prefetch(chain.weight_line(p.chunk, p.panel + 1, p.step * p.ahead + iteration * t.prefetch + q))


def _prefetch_output(chain: Chain, t: Tiling, p: Pass, iteration: ir.Expr, iterations: int) -> None:
    """Fetch some rows of the result that stages will write: else their stores wait for the cache."""
    out = chain.outputs[-1]
    lines = -(-chain.nr * DataType(str(out.ty.dtype)).itemsize // CACHE_LINE_BYTES)
    rows = min(_MOST_ROWS_AHEAD, -(-t.mr // iterations))
    for row, line in itertools.product(range(rows), range(lines)):
        column = p.panel % chain.panels * chain.nr + line * (chain.nr // lines)
        prefetch(out[p.start + iteration * rows + row, column], _L1)
