"""The runner process: `python -m halo_tvm.tuning.measure.runner`. It loads libraries, checks and times them.

Several tasks stay open, the least recently used give way when their arguments take too much memory.
Requests and replies: see `protocol`.
"""

from __future__ import annotations

import sys
from functools import partial

import tvm

from ...targets import resolve
from . import protocol as p
from .bench import Bench, Benches
from .confined import Answer, Say, serve
from .drift import Reference
from .gpu import GpuBench, GpuClock


class Runner:
    """Answers requests."""

    def __init__(self, memory_bytes: int) -> None:
        self._share = memory_bytes // 2
        self._benches: Benches | None = None  # with the first request, which names the target
        self._reference: Reference | GpuClock | None = None

    def answer(self, request: dict, say: Say) -> dict:
        if self._benches is None:
            self._benches = self._begin(request)
        if request["op"] != p.RACE:
            return self._benches.answer(request, say)
        reference_us = self._reference.time_us() if self._reference is not None else 0.0
        return {**self._benches.answer(request, say), "reference_us": reference_us}

    def _begin(self, request: dict) -> Benches:
        assert request["op"] == p.OPEN, "a task must be opened first"
        target = resolve(request["target"], cores=request["cores"])
        if target.spec.gpu:
            self._reference = clock = GpuClock()
            return Benches(partial(GpuBench, clock=clock), clock.free_bytes() // 2)
        self._reference = Reference(target, int(tvm.get_global_func("runtime.NumThreads")()))
        return Benches(Bench, self._share)


def _make() -> tuple[Answer, str]:
    return Runner(int(sys.argv[2])).answer, p.RUN_ERROR


if __name__ == "__main__":
    sys.exit(serve(_make))
