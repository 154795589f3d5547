"""The host's ceilings, measured: fused multiply-adds, products of bfloat16 pairs and of bytes per second, and read
bandwidth at each memory level, with one thread and with all.

The numbers say how far a kernel is from the machine's limit; manifests do not change by them.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..codec import parse
from ..errors import EnvironmentProblem
from ..targets import Host, Target, read_host, resolve, usable_cpus
from .kernels import ACCUMULATORS, TILES, compiled, dot_kernel, fma_kernel, pair_kernel, read_kernel, tile_kernel
from .profile import BF16, INT8, HostProfile

VNNI = "avx512_vnni"  # the flag of the 8-bit dot product that `dot_kernel` uses
ROUNDS = 9
SECONDS_PER_ROUND = 0.04
MIN_DRAM_BYTES = 256 << 20
Repeated = tuple[Callable[[int], None], int]  # what does its work as often as it is told to; the work of one time
_LIMIT_S = 240.0
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from halo_tvm.ceilings import measure; measure.main()"


def measure_apart(threads: int) -> HostProfile:
    """Measure this host with one thread and with `threads`, in a process of its own (about 10 s).

    `EnvironmentProblem` with that process's last words when it fails.
    """
    package = str(Path(__file__).resolve().parents[2])  # the child finds this very package, installed or not
    command = [sys.executable, "-c", _CHILD, package, str(threads)]
    last = ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        last = "".join(done.stderr.strip().splitlines()[-1:])[-300:]
        done.check_returncode()
        return HostProfile.of_json(parse(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = last or (error if isinstance(error, ValueError) else type(error).__name__)
        raise EnvironmentProblem(
            f"the host's ceilings were expected within {_LIMIT_S:.0f} s, but measuring them ended with {why}: "
            "run `halo-tvm doctor`, which says what is missing"
        ) from error


def main() -> None:
    """The process of `measure_apart`: the profile as JSON."""
    target = resolve("cpu", cores=int(sys.argv[2]))
    sys.stdout.write(json.dumps(measure(target, read_host()).as_json()))


def measure(target: Target, host: Host) -> HostProfile:
    """Measure this host with code built for `target`, using one thread and `target.cores` threads.

    Products of bfloat16 are measured where `cpu` stands for a level that has some, with code for that one. Sets
    the thread pool of this process: call it in a process that does nothing else.
    """
    import tvm  # noqa: F401 - brings the pool of threads

    from ..runtime.runner import configure_threads

    threads = target.cores
    configure_threads(threads, usable_cpus())
    l2 = host.l2_bytes or target.spec.l2_bytes
    l3 = max(host.l3_bytes, 4 * l2)
    narrow, octets = (resolve("cpu", host=host, cores=threads, precision=p) for p in ("bf16", "int8"))
    rates = {
        count: {
            "fma_gflops": fma_gflops(target, count),
            **({BF16: bf16_gflops(narrow, count)} if "bfloat16" in narrow.isa.narrow_dtypes else {}),
            **({INT8: int8_gops(octets, count)} if has_int8_dot(octets) else {}),
            "l2_gbps": read_gbps(target, count, l2 * count // 2),
            "l3_gbps": read_gbps(target, count, max(l3 // 2, 2 * l2 * count)),
            "dram_gbps": read_gbps(target, count, max(MIN_DRAM_BYTES, 6 * l3)),
        }
        for count in dict.fromkeys((1, threads))
    }
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return HostProfile(host.model, host.machine, target.isa.name, now, rates)


def has_int8_dot(target: Target) -> bool:
    """Whether `int8_gops` can be measured with code for `target`."""
    return VNNI in target.isa.requires


def fma_gflops(target: Target, threads: int) -> float:
    """Billions of float32 multiplications and additions per second."""
    return _rate(multiplier(target, threads, "float32"), start=100_000)


def bf16_gflops(target: Target, threads: int) -> float:
    """Billions of multiplications and additions per second of pairs of bfloat16; for a target with such products."""
    return _rate(multiplier(target, threads, "bfloat16"), start=100_000)


def int8_gops(target: Target, threads: int) -> float:
    """Billions of operations per second of 8-bit dot products; for a target with `has_int8_dot`."""
    return _rate(multiplier(target, threads, "int8"), start=100_000)


def read_gbps(target: Target, threads: int, size_bytes: int) -> float:
    """GB/s of reading so many bytes again and again, each thread its own part."""
    return _rate(reader(target, threads, size_bytes), start=1)


def multiplier(target: Target, threads: int, dtype: str) -> Repeated:
    """What multiplies and adds operands of "float32", "bfloat16" or "int8", and the operations of one repetition.

    In registers of two dimensions where the target has them: a row of one is 64 bytes of each operand.
    """
    import numpy as np
    import tvm

    sums = "int32" if dtype == "int8" else "float32"
    shape: tuple[int, ...] = (threads, ACCUMULATORS, 16)
    if dtype == "float32":
        shape, products = (threads, ACCUMULATORS, target.lanes_f32), 1
        kernel = fma_kernel(threads, target.lanes_f32)
    elif target.isa.tiles:
        shape, products = (threads, TILES, 16, 16), 64 if dtype == "int8" else 32
        kernel = tile_kernel(threads, sums)
    else:
        kernel, products = (dot_kernel(threads), 4) if dtype == "int8" else (pair_kernel(threads), 2)
    run, out = compiled(kernel, target), tvm.runtime.tensor(np.zeros(shape, sums))
    return lambda times: run(out, times), 2 * products * math.prod(shape)


def reader(target: Target, threads: int, size_bytes: int) -> Repeated:
    """What reads about `size_bytes` as often as it is told to, each thread its own part; and how many bytes that is."""
    import numpy as np
    import tvm

    lanes = target.lanes_f32
    chunks = max(1, size_bytes // (threads * ACCUMULATORS * lanes * 4))
    kernel = compiled(read_kernel(threads, lanes, chunks), target)
    x = tvm.runtime.tensor(np.ones((threads, chunks, ACCUMULATORS, lanes), "float32"))
    out = tvm.runtime.tensor(np.zeros((threads, ACCUMULATORS, lanes), "float32"))
    return lambda times: kernel(x, out, times), threads * chunks * ACCUMULATORS * lanes * 4


def _rate(work: Repeated, start: int) -> float:
    """Billions of operations or bytes per second."""
    run, size = work
    return round(size * _per_second(run, start) / 1e9, 1)


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
