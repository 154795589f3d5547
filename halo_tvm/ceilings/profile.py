"""host.json: a host's measured ceilings, and the one rule by which they are believed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..codec import Form, parse_file, plain, read
from ..targets import Host
from ..whole_file import write_whole
from .peaks import Peaks

BF16 = "bf16_gflops"  # only where the CPU multiplies pairs of bfloat16 faster than float32
INT8 = "int8_gops"  # only where the CPU has 8-bit dot products
RATES = ("fma_gflops", BF16, INT8, "l2_gbps", "l3_gbps", "dram_gbps")  # billions per second
_MOST_BYTES = 1 << 20
_NOT_EVERYWHERE = (BF16, INT8)
_AGAIN = "run `halo-tvm doctor --measure` on an idle machine"


@dataclass(frozen=True)
class HostProfile:
    """Ceilings of one host, by number of threads: `RATES`, over all threads together."""

    cpu: str
    machine: str
    isa: str
    measured_at: str  # UTC, ISO 8601
    by_threads: Mapping[int, Mapping[str, float]]

    def peaks(self, host: Host, threads: int) -> Peaks:
        """The rates with so many threads, beside the caches of their cores on this host; one of `by_threads`."""
        rates = self.by_threads[threads]
        return Peaks(
            threads=threads,
            l2_bytes=host.l2_bytes * threads,
            l3_bytes=host.l3_bytes,
            measured_at=self.measured_at,
            **{name: rates.get(name) for name in RATES},  # type: ignore[arg-type]
        )

    def as_json(self) -> dict[str, object]:
        """Plain values, with the schema's version."""
        return {"schema": 2, **plain(self)}

    @classmethod
    def of_json(cls, body: object) -> HostProfile:
        """What `as_json` gave; `ValueError` for anything else."""
        profile = read(cls, body, form=Form(other_fields=True))
        for rates in profile.by_threads.values():
            missing = [name for name in RATES if name not in rates and name not in _NOT_EVERYWHERE]
            if missing or not all(0.0 < rate < math.inf for rate in rates.values()):
                raise ValueError(f"rates must be positive numbers, all of {', '.join(RATES)}, but found {rates}")
        if not profile.by_threads or min(profile.by_threads) < 1:
            raise ValueError("rates by number of threads were expected")
        return profile

    def save(self, path: Path) -> None:
        """Write host.json, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(self.as_json(), indent=2) + "\n").encode())


def read_profile(path: Path) -> tuple[HostProfile | None, str]:
    """(what `doctor --measure` kept, whatever host it is of; None and why there is none)."""
    if not path.is_file():
        return None, f"this host was not measured: {_AGAIN}"
    try:
        return HostProfile.of_json(parse_file(path, _MOST_BYTES)), ""
    except (ValueError, OSError) as error:
        return None, f"{path.name} is no host profile ({error}): {_AGAIN}"


def kept_peaks(path: Path, host: Host, threads: int) -> tuple[Peaks | None, str]:
    """(the ceilings of `host` with exactly so many threads, as the file keeps them; None and why not)."""
    profile, why = read_profile(path)
    if profile is None:
        return None, why
    if (profile.machine, profile.cpu) != (host.machine, host.model):
        return None, f"{path.name} is of another machine: {_AGAIN}"
    if threads not in profile.by_threads:
        return None, f"{path.name} has no rates for {threads} thread{'s' if threads > 1 else ''}: {_AGAIN}"
    return profile.peaks(host, threads), ""
