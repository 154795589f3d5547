"""The host's ceilings for some threads: from host.json (`doctor --measure`), else measured in a process of its own.

The process that runs an artifact imports no compiler; measuring builds kernels, and it sets the thread pool.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping

from ..records import host_profile
from ..report.schema import Peaks
from ..targets import Host, read_host

_LIMIT_S = 240.0
_MEASURE = """
import json, sys
from halo_tvm.targets import read_host, resolve
from halo_tvm.targets._measure import measure
sys.stdout.write(json.dumps(measure(resolve("cpu", cores=int(sys.argv[1])), read_host()).as_json()))
"""


def peaks_of(threads: int, *, measure: bool = True) -> tuple[Peaks | None, str]:
    """(the ceilings with so many threads; None where they are unknown, and why, or how they were found)."""
    host = read_host()
    path = host_profile()
    why = "this host was not measured"
    if path.is_file():
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            kept, why = None, f"host.json cannot be read ({type(error).__name__})"
        if isinstance(kept, Mapping):
            found, why = _of(kept, host, threads)
            if found:
                return found, f"peaks of {found.measured_at}, by `halo-tvm doctor --measure`"
    if not measure:
        return None, f"peaks unknown: {why}: run `halo-tvm doctor --measure` on an idle machine"
    command = [sys.executable, "-c", _MEASURE, str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
        found, failed = _of(json.loads(done.stdout), host, threads)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return None, f"peaks unknown: {why}, and measuring them now ended with {type(error).__name__}"
    if found is None:
        return None, f"peaks unknown: {failed}"
    return found, f"peaks measured just now, as {why}; `halo-tvm doctor --measure` keeps them"


def _of(profile: Mapping[str, object], host: Host, threads: int) -> tuple[Peaks | None, str]:
    """The ceilings in a host profile, or None and why it does not serve."""
    if (profile.get("machine"), profile.get("cpu")) != (host.machine, host.model):
        return None, "host.json is of another machine"
    by_threads = profile.get("by_threads")
    rates = by_threads.get(str(threads)) if isinstance(by_threads, Mapping) else None
    if not isinstance(rates, Mapping):
        if profile.get("threads") != threads:
            return None, f"host.json has no rates for {threads} threads"
        rates = profile
    values = {name: rates.get(name) for name in ("fma_gflops", "l2_gbps", "l3_gbps", "dram_gbps")}
    if not all(isinstance(v, (int, float)) and 0 < v < math.inf for v in values.values()):
        return None, "host.json holds rates that are none"
    int8 = rates.get("int8_gops")
    return Peaks(
        threads=threads,
        int8_gops=float(int8) if isinstance(int8, (int, float)) and 0 < int8 < math.inf else None,
        l2_bytes=host.l2_bytes * threads,
        l3_bytes=host.l3_bytes,
        measured_at=str(profile.get("measured_at", "")),
        **{name: float(v) for name, v in values.items()},  # type: ignore[arg-type]
    ), ""
