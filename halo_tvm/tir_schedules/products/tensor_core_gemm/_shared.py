"""A tile in shared memory whose rows are read 8 at a time without bank conflicts.

Shared memory gives 128 bytes a cycle when each 16 of them come from other banks. Rows of a tile follow each other
without gaps, so pieces of 16 bytes that stand in one column would share banks; each row therefore keeps its pieces in
an order of its own ("swizzle"): piece p of row r stands at p ^ phase(r).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir

from ....dimensions import itemsize_of
from ...code.threads import VECTOR_BYTES

_LINE_PIECES = 8  # of 16 bytes: all banks once


@dataclass(frozen=True)
class SharedTile:
    """[rows, columns] of `dtype`; columns * itemsize is 32, 64 or a multiple of 128 bytes."""

    rows: int
    columns: int
    dtype: str

    @property
    def piece(self) -> int:
        """Elements of 16 bytes."""
        return VECTOR_BYTES // itemsize_of(self.dtype)

    @property
    def size(self) -> int:
        """Elements of the tile."""
        return self.rows * self.columns

    @property
    def size_bytes(self) -> int:
        return self.size * itemsize_of(self.dtype)

    def at(self, row: ir.Expr, column: ir.Expr) -> ir.Expr:
        """Where element (row, column) stands; those of its piece that follow it stand behind it."""
        pieces = self.columns // self.piece
        return row * self.columns + (column // self.piece ^ self._phase(row, pieces)) * self.piece + column % self.piece

    def _phase(self, row: ir.Expr, pieces: int) -> ir.Expr:
        line = row if pieces >= _LINE_PIECES else row // (_LINE_PIECES // pieces)
        if self.piece == 4:
            # Read as pairs of float32: 16 lanes take two pieces of four rows at a time.
            return line % 4 * 2 if pieces >= _LINE_PIECES else line % 2 * 2
        return line % min(pieces, _LINE_PIECES)
