"""How the nest of a packed GEMM is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..row_tiling import RowTiling
from .amx import InTiles
from .arithmetic import Arithmetic


@dataclass(frozen=True, kw_only=True)
class Tiling(RowTiling):
    """See the rule's Decision for the meaning of the shared fields."""

    lanes: int
    unroll: int
    prefetch: int

    def with_few(self, arithmetic: Arithmetic) -> Tiling:
        """The same where blocks of few rows are multiplied in vectors, which take fewer rows at once."""
        if not isinstance(arithmetic, InTiles) or not arithmetic.few_block_rows:
            return self
        return replace(self, few=arithmetic.few_block_rows, few_mr=arithmetic.few_rows)
