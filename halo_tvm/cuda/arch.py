"""Names of compute capabilities."""

from __future__ import annotations

import re

# The most of each axis of a launch; none of them may be 0.
LAUNCH_LIMITS = {
    "blockIdx.x": 2**31 - 1,
    "blockIdx.y": 65535,
    "blockIdx.z": 65535,
    "threadIdx.x": 1024,
    "threadIdx.y": 1024,
    "threadIdx.z": 64,
}


def capability(arch: str) -> int:
    """The number of a compute capability: 90 for "sm_90" and "sm_90a"; 0 for what is none."""
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(found[1]) if found else 0
