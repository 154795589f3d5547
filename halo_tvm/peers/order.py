"""In which order engines take turns: no place in a round, and no engine before it, belongs to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turn(engines: Sequence[T], index: int) -> list[T]:
    """`engines` in the order of round `index` (from 0).

    A Williams design: over n rounds (2n where n is odd) every engine stands once (twice) at every place and once
    (twice) directly behind every other. A turn leaves its marks on the next one: caches, clocks, pages. Were rounds
    only rotated, each engine would bear those of one and the same other.
    """
    n = len(engines)
    zigzag = [(place + 1) // 2 if place % 2 else n - place // 2 for place in range(n)]  # n, 1, n - 1, 2, ...
    order = [engines[(step + index) % n] for step in zigzag]
    return order[::-1] if n % 2 and index % 2 else order
