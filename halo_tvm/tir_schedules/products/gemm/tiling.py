"""How the nest of a packed GEMM is cut."""

from __future__ import annotations

from dataclasses import dataclass

from ..row_tiling import RowTiling


@dataclass(frozen=True, kw_only=True)
class Tiling(RowTiling):
    """See the rule's Decision for the meaning of the shared fields."""

    lanes: int
    unroll: int
    prefetch: int
