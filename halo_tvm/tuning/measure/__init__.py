"""Measuring candidates: a lab builds, checks and times them in processes of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...targets import Target
    from .lab import Lab, LabOptions


def make_lab(target: Target, options: LabOptions, *, seed: int, l3_bytes: int) -> Lab:
    """The lab that measures on this machine."""
    from .pool import Pool

    return Pool(target, options, seed=seed, l3_bytes=l3_bytes)
