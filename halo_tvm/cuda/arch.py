"""Names of compute capabilities."""

from __future__ import annotations

import re


def capability(arch: str) -> int:
    """The number of a compute capability: 90 for "sm_90" and "sm_90a"; 0 for what is none."""
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(found[1]) if found else 0
