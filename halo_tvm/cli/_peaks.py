"""The host's ceilings for some threads: those that `doctor --measure` kept, else measured in a process of its own."""

from __future__ import annotations

from ..ceilings import Peaks, kept_peaks
from ..ceilings.measure import measure_apart
from ..errors import EnvironmentProblem
from ..records import host_profile
from ..targets import read_host


def peaks_of(threads: int, *, measure: bool = True) -> tuple[Peaks | None, str]:
    """(the ceilings with so many threads; None where they are unknown, and why, or how they were found)."""
    host = read_host()
    found, why = kept_peaks(host_profile(), host, threads)
    if found is not None:
        return found, f"peaks of {found.measured_at}, by `halo-tvm doctor --measure`"
    if not measure:
        return None, f"peaks unknown: {why}"
    try:
        return measure_apart(threads).peaks(host, threads), f"peaks measured just now, as {why}"
    except EnvironmentProblem as error:
        return None, f"peaks unknown: {why}; and now {error}"
