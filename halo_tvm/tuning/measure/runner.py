"""The runner process: `python -m halo_tvm.tuning.measure.runner`. It loads libraries, checks and times them.

Several tasks stay open, the least recently used give way when their arguments take too much memory.
Requests and replies: see `protocol`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import tvm

from ...targets import resolve
from . import protocol as p
from .bench import Bench
from .confined import Answer, Say, serve
from .drift import Reference
from .gpu import GpuBench, GpuClock


class Runner:
    """Answers requests."""

    def __init__(self, memory_bytes: int) -> None:
        self._benches: dict[str, Bench] = {}  # the least recently used first
        self._share = memory_bytes // 2  # for arguments of tasks that are not in use
        self._reference: Reference | GpuClock | None = None
        self._bench: Callable[[dict], Bench] = Bench

    def answer(self, request: dict, say: Say) -> dict:
        op = request["op"]
        if op == p.OPEN:
            return self._open(request)
        bench = self._benches.get(request["key"])
        if op == p.DROP:
            if bench is not None:
                bench.drop(request["labels"])
            return {}
        assert bench is not None, "a task must be opened first"
        if op == p.LOAD:
            bench.load(request["label"], request["path"], request["check"], request["default"])
            return {}
        if op == p.PREPARE:
            bench.prepare(request["plain"], request["default"], request["checked"])
            return {}
        if op == p.PROBE:
            return {"us": bench.probe(request["label"], request["size"])}
        assert op == p.RACE, f"no such request: {op}"
        reference_us = self._reference.time_us() if self._reference is not None else 0.0
        us = bench.race(request["labels"], request["size"], request["rounds"], request["number"], say)
        return {"us": us, "reference_us": reference_us}

    def _open(self, request: dict) -> dict:
        if self._reference is None:
            target = resolve(request["target"], cores=request["cores"])
            if target.spec.gpu:
                self._reference = clock = GpuClock()
                self._bench, self._share = partial(GpuBench, clock=clock), clock.free_bytes() // 2
            else:
                self._reference = Reference(target, int(tvm.get_global_func("runtime.NumThreads")()))
        key = request["key"]
        bench = self._benches.pop(key, None)
        if bench is not None:
            bench.resize(request["sizes"])
            self._benches[key] = bench
            return {"evicted": []}
        evicted = []
        while self._benches and sum(b.bytes for b in self._benches.values()) > self._share:
            evicted.append(next(iter(self._benches)))
            del self._benches[evicted[-1]]
        self._benches[key] = self._bench(request)
        return {"evicted": evicted}


def _make() -> tuple[Answer, str]:
    return Runner(int(sys.argv[2])).answer, p.RUN_ERROR


if __name__ == "__main__":
    sys.exit(serve(_make))
