"""What a call costs beyond the virtual machine: python scripts/runtime_overhead.py x.halo [threads]"""

from __future__ import annotations

import statistics
import sys
import time

from halo_tvm.runtime import load
from halo_tvm.runtime.inputs import generate_inputs

ROUNDS, CALLS = 21, 200


def main(path: str, threads: int = 1) -> None:
    with load(path, threads=threads) as module:
        inputs = generate_inputs(module.spec)
        calls, machine = [], []
        for _ in range(ROUNDS):  # interleaved, so that other load meets both
            machine += module.benchmark(number=CALLS, repeat=1, **inputs).samples
            start = time.perf_counter()
            for _ in range(CALLS):
                module(**inputs)
            calls.append((time.perf_counter() - start) / CALLS * 1e3)
        call_us, machine_us = statistics.median(calls) * 1e3, statistics.median(machine) * 1e3
        print(f"call {call_us:.1f} us, virtual machine {machine_us:.1f} us, overhead {call_us - machine_us:.1f} us")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
