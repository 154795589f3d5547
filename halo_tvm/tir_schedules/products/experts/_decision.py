"""How the rows of an expert are cut, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """How the rows of an expert are cut."""

    mr: int  # rows of the register tile
    unroll: int  # k steps per iteration of the inner loop
    block_rows: int  # most rows of a task
