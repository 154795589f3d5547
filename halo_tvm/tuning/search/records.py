"""Stage "records": decisions that won before, for this workload or one like it, are measured again."""

from __future__ import annotations

from collections.abc import Sequence

from .board import Board
from .efforts import RECORDS


class FromRecords:
    """Hands out the decisions it was given, best first: exact records, hints, then the nearest workloads'."""

    name = RECORDS

    def __init__(self, decisions: Sequence[object]) -> None:
        self._decisions = list(dict.fromkeys(decisions))

    def propose(self, board: Board, count: int) -> list[object]:
        """Up to `count` decisions not tried yet; none when all were."""
        self._decisions = [d for d in self._decisions if board.is_open(d)]
        return self._decisions[:count]
