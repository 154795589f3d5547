"""How one product is cut: blocks of rows, panels of columns, pieces of k, register tiles."""

from __future__ import annotations

from dataclasses import dataclass

from ..row_tiling import RowTiling


@dataclass(frozen=True, kw_only=True)
class Tiling(RowTiling):
    """See the rule's Decision for the meaning of the shared fields."""

    lanes: int
    vectors: int
    kc: int

    @property
    def nr(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    def most_rows(self, m: int | None) -> int:
        """The rows of the tallest block: twice the least, as the blocks of many rows are rounded down to the cores."""
        return 2 * self.block_rows if m is None else max(self.heights(m))
