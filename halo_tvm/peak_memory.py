"""The most memory this process ever held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_rss_mib() -> float:
    """MiB that were resident at most, of this process alone where the system says so.

    Where it does not, the parent's peak when it started this process may be the larger one, and count.
    """
    if _STATUS.is_file():
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # bytes there, else KiB
