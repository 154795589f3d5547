"""The host's ceilings, measured: fused multiply-adds and 8-bit dot products per second, and read bandwidth at each
memory level, with one thread and with all.

The numbers say how far a kernel is from the machine's limit; manifests do not change by them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ._host import Host
from ._target import Target

if TYPE_CHECKING:
    from tvm import tirx

ACCUMULATORS = 12  # independent chains: latency times units is at most 10 on today's cores; AVX2 has 16 registers
VNNI = "avx512_vnni"  # the flag of the 8-bit dot product that `dot_kernel` uses
ROUNDS = 9
SECONDS_PER_ROUND = 0.04
MIN_DRAM_BYTES = 256 << 20
_SHARE_LISTED_CORES = -3  # affinity mode of TVM's thread pool


@dataclass(frozen=True)
class HostProfile:
    """Ceilings of one host. Bandwidths are GB/s (1e9 bytes) over all threads together."""

    cpu: str
    machine: str
    isa: str
    threads: int
    fma_gflops_one_thread: float
    fma_gflops: float
    l2_gbps: float
    l3_gbps: float
    dram_gbps: float
    measured_at: str  # UTC, ISO 8601
    # Number of threads, as text -> the same rates, and int8_gops where the ISA has an 8-bit dot product.
    by_threads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Plain values, with the schema's version."""
        return {"schema": 1, **dataclasses.asdict(self)}

    def save(self, path: Path) -> None:
        """Write host.json: a temporary file, synced, then renamed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(self.as_json(), file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def measure(target: Target, host: Host) -> HostProfile:
    """Measure this host with code built for `target`, using one thread and `target.cores` threads (about 10 s).

    Sets the thread pool of this process: call it in a process that does nothing else.
    """
    threads = target.cores
    _use_threads(threads)
    l2 = host.l2_bytes or target.spec.l2_bytes
    l3 = max(host.l3_bytes, 4 * l2)
    rates = {
        count: {
            "fma_gflops": _fma_gflops(target, count),
            **({"int8_gops": _int8_gops(target, count)} if VNNI in target.isa.requires else {}),
            "l2_gbps": _read_gbps(target, count, l2 * count // 2),
            "l3_gbps": _read_gbps(target, count, max(l3 // 2, 2 * l2 * count)),
            "dram_gbps": _read_gbps(target, count, max(MIN_DRAM_BYTES, 6 * l3)),
        }
        for count in dict.fromkeys((1, threads))
    }
    return HostProfile(
        cpu=host.model,
        machine=host.machine,
        isa=target.isa.name,
        threads=threads,
        fma_gflops_one_thread=rates[1]["fma_gflops"],
        **{name: rates[threads][name] for name in ("fma_gflops", "l2_gbps", "l3_gbps", "dram_gbps")},
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        by_threads={str(count): found for count, found in rates.items()},
    )


def fma_kernel(threads: int, lanes: int) -> tirx.PrimFunc:
    """(out [threads, ACCUMULATORS, lanes], n): n fused multiply-adds on each element, in registers."""
    from tvm.script import tirx as T

    count = ACCUMULATORS

    @T.prim_func
    def main(out: T.Buffer((threads, count, lanes), "float32"), n: T.int64) -> None:
        for t in T.parallel(threads):
            acc = T.alloc_buffer((count, lanes), "float32", scope="local")
            for a in T.unroll(count):
                for v in T.vectorized(lanes):
                    acc[a, v] = out[t, a, v]
            for _ in T.serial(n):
                for a in T.unroll(count):
                    for v in T.vectorized(lanes):
                        acc[a, v] = acc[a, v] * T.float32(0.999) + T.float32(0.5)
            for a in T.unroll(count):
                for v in T.vectorized(lanes):
                    out[t, a, v] = acc[a, v]

    return main


def dot_kernel(threads: int) -> tirx.PrimFunc:
    """(out [threads, ACCUMULATORS, 16] int32, n): n dot products of four bytes (3 * 2) added to each element."""
    from tvm.script import tirx as T

    count = ACCUMULATORS

    @T.prim_func
    def main(out: T.Buffer((threads, count, 16), "int32"), n: T.int64) -> None:
        for t in T.parallel(threads):
            acc = T.alloc_buffer((count, 16), "int32", scope="local")
            for a in T.unroll(count):
                acc[a, T.ramp(0, 1, 16)] = out[t, a, T.ramp(0, 1, 16)]
            for _ in T.serial(n):
                for a in T.unroll(count):
                    acc[a, T.ramp(0, 1, 16)] = T.call_llvm_pure_intrin(
                        "int32x16",
                        T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
                        acc[a, T.ramp(0, 1, 16)],
                        T.reinterpret("int8x64", T.broadcast(T.int32(0x03030303), 16)),
                        T.reinterpret("int8x64", T.broadcast(T.int32(0x02020202), 16)),
                    )
            for a in T.unroll(count):
                out[t, a, T.ramp(0, 1, 16)] = acc[a, T.ramp(0, 1, 16)]

    return main


def read_kernel(threads: int, lanes: int, chunks: int) -> tirx.PrimFunc:
    """(x [threads, chunks, ACCUMULATORS, lanes], out [threads, ...], n): n sums over each thread's part."""
    from tvm.script import tirx as T

    count = ACCUMULATORS

    @T.prim_func
    def main(
        x: T.Buffer((threads, chunks, count, lanes), "float32"),
        out: T.Buffer((threads, count, lanes), "float32"),
        n: T.int64,
    ) -> None:
        for t in T.parallel(threads):
            acc = T.alloc_buffer((count, lanes), "float32", scope="local")
            for a in T.unroll(count):
                for v in T.vectorized(lanes):
                    acc[a, v] = T.float32(0)
            for _ in T.serial(n):
                for c in T.serial(chunks):
                    for a in T.unroll(count):
                        for v in T.vectorized(lanes):
                            acc[a, v] = acc[a, v] + x[t, c, a, v]
            for a in T.unroll(count):
                for v in T.vectorized(lanes):
                    out[t, a, v] = acc[a, v]

    return main


def _use_threads(threads: int) -> None:
    """Give TVM's pool `threads` threads; by default it takes half of the cores, and it never grows later."""
    import tvm

    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(threads))
    tvm.get_global_func("runtime.config_threadpool")(
        _SHARE_LISTED_CORES, threads, [str(core) for core in sorted(cores)][:threads]
    )
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # configuring the pool has narrowed this thread


def _build(func: tirx.PrimFunc, target: Target) -> Callable[..., None]:
    import tvm

    return tvm.compile(func.with_attr("global_symbol", "main"), target=target.tvm)["main"]


def _fma_gflops(target: Target, threads: int) -> float:
    import numpy as np
    import tvm

    lanes = target.lanes_f32
    kernel = _build(fma_kernel(threads, lanes), target)
    out = tvm.runtime.tensor(np.ones((threads, ACCUMULATORS, lanes), "float32"))
    per_second = _per_second(lambda n: kernel(out, n), start=100_000)
    return round(2 * threads * ACCUMULATORS * lanes * per_second / 1e9, 1)


def _int8_gops(target: Target, threads: int) -> float:
    import numpy as np
    import tvm

    kernel = _build(dot_kernel(threads), target)
    out = tvm.runtime.tensor(np.zeros((threads, ACCUMULATORS, 16), "int32"))
    per_second = _per_second(lambda n: kernel(out, n), start=100_000)
    return round(2 * 4 * threads * ACCUMULATORS * 16 * per_second / 1e9, 1)


def _read_gbps(target: Target, threads: int, size_bytes: int) -> float:
    import numpy as np
    import tvm

    lanes = target.lanes_f32
    chunks = max(1, size_bytes // (threads * ACCUMULATORS * lanes * 4))
    kernel = _build(read_kernel(threads, lanes, chunks), target)
    x = tvm.runtime.tensor(np.ones((threads, chunks, ACCUMULATORS, lanes), "float32"))
    out = tvm.runtime.tensor(np.zeros((threads, ACCUMULATORS, lanes), "float32"))
    per_second = _per_second(lambda n: kernel(x, out, n), start=1)
    return round(threads * chunks * ACCUMULATORS * lanes * 4 * per_second / 1e9, 1)


def _per_second(run: Callable[[int], None], start: int) -> float:
    """Repetitions per second in the best round: a ceiling is what nothing else on the machine disturbed."""
    n = start
    while True:
        began = time.perf_counter()
        run(n)
        seconds = time.perf_counter() - began
        if seconds >= SECONDS_PER_ROUND / 2:
            break
        n *= 2
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run(n)
        rates.append(n / (time.perf_counter() - began))
    return max(rates)
