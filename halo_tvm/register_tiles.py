"""A square tile of 32-bit elements turned in registers: loads, shuffles and stores of whole vectors, no gathers.

    W rows of W elements  ->  W columns, W = 4, 8 or 16: the lanes of one register
    pairs of rows        interleaved by 4 bytes, then by 8: each 128-bit block holds a turned 4 x 4 block
    blocks of 128 bits   exchanged between registers, in as many steps as 4 goes into W twice
Every step is one shuffle of two registers: 64 for 16 x 16, 24 for 8 x 8, 8 for 4 x 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, tirx
from tvm.ir import Expr

WIDTHS = (4, 8, 16)
_LOW = (0, 1)  # halves of a block, in pairs of elements
_HIGH = (2, 3)


def turned(rows: Sequence[Expr], dtype: str) -> tuple[list[tirx.Stmt], list[Expr]]:
    """(statements that bind registers, the columns) of W rows, each a vector of W elements of a 32-bit `dtype`."""
    width = len(rows)
    assert width in WIDTHS, f"a tile has {' or '.join(map(str, WIDTHS))} rows, not {width}"
    bound: list[tirx.Stmt] = []

    def register(value: Expr) -> ir.Var:
        var = tirx.Var("turned", f"{dtype}x{width}")
        bound.append(tirx.Bind(var, value))
        return var

    def shuffled(a: Expr, b: Expr, lanes: Sequence[int]) -> ir.Var:
        return register(tirx.Shuffle([a, b], [tirx.IntImm("int32", lane) for lane in lanes]))

    starts = range(0, width, 4)  # of blocks of 128 bits
    vectors: list[Expr] = [register(row) for row in rows]
    # a0 b0 a1 b1 and a2 b2 a3 b3 of every block, for rows a, b
    halves: list[Expr] = []
    for first in range(0, width, 2):
        for pair in (_LOW, _HIGH):
            lanes = [s + at + side for s in starts for at in pair for side in (0, width)]
            halves.append(shuffled(vectors[first], vectors[first + 1], lanes))
    # blocks[g][c]: in block l, column 4 l + c of rows 4 g to 4 g + 3
    blocks: list[list[Expr]] = []
    for first in range(0, width, 4):
        low, high, other_low, other_high = halves[first : first + 4]
        turned_blocks: list[Expr] = []
        for a, b in ((low, other_low), (high, other_high)):
            for pair in (_LOW, _HIGH):
                lanes = [s + at + side for s in starts for side in (0, width) for at in pair]
                turned_blocks.append(shuffled(a, b, lanes))
        blocks.append(turned_blocks)
    columns: dict[int, Expr] = {}
    for c in range(4):
        parts = [group[c] for group in blocks]
        for block, vector in enumerate(_exchanged(parts, width, shuffled)):
            columns[4 * block + c] = vector
    return bound, [columns[c] for c in range(width)]


def _exchanged(parts: list[Expr], width: int, shuffled: Callable[[Expr, Expr, Sequence[int]], Expr]) -> list[Expr]:
    """Block l of every part, in order of the parts, for each l: a transposition of 128-bit blocks."""
    if len(parts) == 1:
        return parts

    def blocks_of(a: Expr, b: Expr, chosen: Sequence[int], others: Sequence[int]) -> Expr:
        lanes = [4 * block + k for block in chosen for k in range(4)]
        lanes += [width + 4 * block + k for block in others for k in range(4)]
        return shuffled(a, b, lanes)

    if len(parts) == 2:
        return [blocks_of(parts[0], parts[1], (l,), (l,)) for l in (0, 1)]
    even = [blocks_of(parts[i], parts[i + 1], (0, 2), (0, 2)) for i in (0, 2)]
    odd = [blocks_of(parts[i], parts[i + 1], (1, 3), (1, 3)) for i in (0, 2)]
    return [blocks_of(pair[0], pair[1], chosen, chosen) for chosen in ((0, 2), (1, 3)) for pair in (even, odd)]
