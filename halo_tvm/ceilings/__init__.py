"""What this host can do at most: measured, kept in host.json, read back by one rule, and the least time under it."""

from __future__ import annotations

from .peaks import Peaks, least_us
from .profile import HostProfile, kept_peaks, read_profile

__all__ = ["HostProfile", "Peaks", "kept_peaks", "least_us", "read_profile"]
