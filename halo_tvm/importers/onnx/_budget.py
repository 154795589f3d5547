"""What one file may ask for while constants are computed from constants: memory and time, all nodes together."""

from __future__ import annotations

from ..meaning.builder import Refused

_MOST_FOLDED_BYTES = 1 << 31  # of all constants computed from constants
_MOST_WORK = 1 << 31  # elements read and written to compute constants from constants
_MOST_LATER = 1 << 33  # the same, when constants are read that are computed then


class Budget:
    """Counted as a file is converted."""

    def __init__(self) -> None:
        self._folded_bytes = 0
        self._work = 0
        self._later = 0

    def count_folded(self, size_bytes: int) -> None:
        """Account for a constant computed from constants."""
        self._folded_bytes += size_bytes
        if self._folded_bytes > _MOST_FOLDED_BYTES:
            raise Refused("the constants computed from constants would be too large")

    def count_work(self, elements: int) -> None:
        """Account for what it takes to compute a constant from constants."""
        self._work += elements
        if self._work > _MOST_WORK:
            raise Refused("it takes too long to compute all constants from constants")

    def may_work_later(self, elements: int) -> bool:
        """Account for what it takes to compute a constant each time it is read; False where that is too much."""
        self._later += elements
        return self._later <= _MOST_LATER
