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
        return first, (min(m, end) if isinstance(end, int) else tirx.min(m, end)) - first

    def heights(self, m: int) -> list[int]:
        """Rows of each block, in order."""
        blocks = self.blocks(m)
        return [self.rows_of(m, block, blocks)[1] for block in range(blocks)]

    def tile_heights(self, rows: int) -> list[int]:
        """Rows of each tile of a block of `rows` rows, in order; a block can be empty where tiles are not balanced."""
        tiles = -(-rows // self.mr)
        if tiles == 0:
            return []
        if self.balance:
            base, extra = divmod(rows, tiles)
            return [base + 1] * extra + [base] * (tiles - extra)
        return [self.mr] * (tiles - 1) + [rows - (tiles - 1) * self.mr]
