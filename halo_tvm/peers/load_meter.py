"""How busy other processes, and other machines of the same host, kept the processors during a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PROC = Path("/proc")


class LoadMeter:
    """Cores taken by others since the meter was made: processes not below this one, and the hypervisor (steal time).

    None where the system does not say.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._start = self._now()

    def other_cores(self) -> float | None:
        now = self._now()
        if now is None or self._start is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(0.0, (busy - own) / wall) if wall > 0 else 0.0

    def _now(self) -> tuple[float, float, float] | None:
        """Wall, busy and own seconds."""
        if not (self._proc / "stat").exists():
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        times = (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:]
        busy = sum(int(t) for name, t in zip(names, times, strict=False) if name not in ("idle", "iowait"))
        return time.monotonic(), busy / ticks, self._own_ticks() / ticks

    def _own_ticks(self) -> int:
        """Time of this process and all below it. What a process waited for is in its own lines, so an end of one of
        them changes nothing."""
        ticks: dict[int, int] = {}
        below: dict[int, list[int]] = {}
        for entry in self._proc.glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended meanwhile, or is hidden: not ours
            pid = int(entry.parent.name)
            ticks[pid] = sum(map(int, fields[11:15]))
            below.setdefault(int(fields[1]), []).append(pid)
        found, todo = 0, [os.getpid()]
        while todo:
            pid = todo.pop()
            found += ticks.get(pid, 0)
            todo += below.get(pid, [])
        return found
