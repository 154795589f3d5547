"""A tuning budget: wall-clock time as people write it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from ..errors import UsageError

_PARTS = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)
_LONGEST_S = 366 * 24 * 3600.0


def parse_budget(budget: str | float) -> float:
    """Seconds in "90s", "2m", "1h30m" or a number of seconds; `UsageError` unless it is a positive, finite time."""
    seconds = _seconds(budget)
    if seconds is None or not 0 < seconds <= _LONGEST_S:
        raise UsageError(
            f"a budget is a positive time of at most a year, such as 90s, 2m, 1h30m or a number of seconds, "
            f"but {str(budget)[:60]!r} was given: correct --budget"
        )
    return seconds


def _seconds(budget: str | float) -> float | None:
    if isinstance(budget, bool):
        return None
    if isinstance(budget, (int, float)):
        return float(budget) if math.isfinite(budget) and abs(budget) < 1e12 else None
    text = "".join(budget.split()).lower()
    match = _PARTS.fullmatch(text)
    if not text or match is None or len(text) > 40:
        return None
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


class Clock:
    """Counts a budget down from its creation."""

    def __init__(self, budget_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._start = now()
        self.budget_s = budget_s

    @property
    def elapsed_s(self) -> float:
        return self._now() - self._start

    @property
    def left_s(self) -> float:
        return max(0.0, self.budget_s - self.elapsed_s)

    def slice(self, seconds: float) -> Clock:
        """A clock for a part of what is left."""
        return Clock(min(seconds, self.left_s), self._now)
