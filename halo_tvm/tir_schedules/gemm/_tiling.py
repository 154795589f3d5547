"""How the rows of a GEMM are cut: into blocks, one behind the other, and each block into register tiles.

The same arithmetic on integers and on expressions, so that the loop nest, the list of tile heights it
has code for and the estimate cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx


@dataclass(frozen=True)
class Tiling:
    """How the nest is cut; see the rule's Decision for the meaning of the shared fields."""

    lanes: int
    mr: int
    unroll: int
    prefetch: int
    block_rows: int
    balance: bool
    cores: int

    def blocks(self, m: ir.Expr | int) -> ir.Expr | int:
        """Row blocks of at least `block_rows` rows; as many for every core where there are more than cores."""
        if self.block_rows == 0:
            return 1
        whole = m // self.block_rows
        if isinstance(m, int):
            return max(1, whole - whole % self.cores if whole > self.cores else whole)
        even = tirx.if_then_else(whole > self.cores, whole - whole % self.cores, whole)
        return tirx.max(1, even)

    def rows_of(self, m: ir.Expr | int, block: ir.Expr | int, blocks: ir.Expr | int) -> tuple:
        """(first row, number of rows) of a block. Without balance, blocks end where full tiles end."""
        unit = 1 if self.balance else self.mr
        units = (m + (unit - 1)) // unit
        first, end = block * units // blocks * unit, (block + 1) * units // blocks * unit
        return first, _least(m, end) - first

    def tile_of(self, height: ir.Expr | int, at: ir.Expr | int, tiles: ir.Expr | int) -> tuple:
        """(first row, number of rows) of tile `at` of a block: all full but the last, or all nearly equal."""
        if not self.balance:
            return at * self.mr, _least(height - at * self.mr, self.mr)
        base, extra = height // tiles, height % tiles
        larger = at < extra
        return at * base + _least(at, extra), base + (
            int(larger) if isinstance(larger, bool) else tirx.if_then_else(larger, 1, 0)
        )

    def heights(self, m: int) -> list[int]:
        """Rows of each block, in order."""
        blocks = self.blocks(m)
        return [self.rows_of(m, block, blocks)[1] for block in range(blocks)]

    def tile_heights(self, rows: int) -> list[int]:
        """Rows of each tile of a block of `rows` rows, in order; a block can be empty where tiles are not balanced."""
        tiles = -(-rows // self.mr)
        return [self.tile_of(rows, at, tiles)[1] for at in range(tiles)]


def _least(a: ir.Expr | int, b: ir.Expr | int) -> ir.Expr | int:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.min(a, b)
