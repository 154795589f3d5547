"""Winners of earlier runs that were measured again and not chosen: `compile` must not take them any more."""

from __future__ import annotations

from collections.abc import Sequence

from .search.board import Board
from .search.outcome import Confirmed


def lost_again(
    standing: Sequence[object], board: Board, confirmed: Confirmed | None
) -> dict[object, tuple[float, str]]:
    """(speed-up over the default, why it is withdrawn) of those `standing` decisions that lost in a search that ended.

    What was not measured stands, and so does what was faster than the default where no other was certainly so.
    """
    chosen = confirmed.decision if confirmed is not None and confirmed.is_faster else None
    lost = {}
    for decision in standing:
        speedup = board.speedups.get(decision, 0.0)
        if confirmed is not None and decision == confirmed.decision:
            speedup = confirmed.speedup
        if decision in board.failed:
            lost[decision] = 0.0, "it failed when it was measured again"
        elif decision == chosen or decision not in board.speedups:
            continue
        elif chosen is not None:
            lost[decision] = speedup, "another decision was faster when both were measured"
        elif speedup < 1.0:
            lost[decision] = speedup, "it was slower than the default when it was measured again"
    return lost
