"""How busy other processes kept the machine during a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_STAT = Path("/proc/stat")


class LoadMeter:
    """Cores that processes other than `pids` used since the meter was made; None where the system does not say."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = (*pids, os.getpid())
        self._start = self._now()

    def other_cores(self) -> float | None:
        now = self._now()
        if now is None or self._start is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, (busy - own) / wall) if wall > 0 else 0.0

    def _now(self) -> tuple[float, float, float] | None:
        """Wall, busy and own seconds."""
        if not _STAT.exists():
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system, _idle, _wait, irq, softirq = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:8])
        return (
            time.monotonic(),
            (user + nice + system + irq + softirq) / ticks,
            sum(map(_cpu_ticks, self._pids)) / ticks,
        )


def _cpu_ticks(pid: int) -> int:
    """User and system time of a process and the children it waited for; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0
    return sum(map(int, fields[11:13]))
