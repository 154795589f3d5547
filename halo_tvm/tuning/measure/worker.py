"""The measurement worker: `python -m halo_tvm.tuning.measure.worker`, one process for a whole run.

It builds candidates itself, so that whatever a candidate does (crash, hang, eat memory) happens here
and not in the tuner. Requests and replies: see `protocol`. It ends when its input ends or its parent dies.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

import tvm
from tvm import tirx

from ...errors import Declined
from ...passes.schedule import scheduled_by
from ...plugins import load_plugins
from ...records.decision import decision_from_plain
from ...targets import Target, resolve
from ...tir_schedules import RULES, Rule
from . import protocol as p
from .build import NAME, build
from .inputs import Arguments, Weights, differences

_PAUSE_S = 0.001  # before a turn: the threads of the turn before go to sleep
_LONG_US = 10_000.0
_HOPELESS = 3.0  # a candidate this much slower than the default at its first run is not timed
_OUT_OF_MEMORY = ("bad_alloc", "out of memory", "cannot allocate memory", "memoryerror")


class Failed(Exception):
    """Control flow: a request failed in a known way; `kind` is the error class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Bench:
    """One task: its default, its reference results, and the candidates that are built."""

    def __init__(self, request: dict, defaults: dict[str, tvm.runtime.Module]) -> None:
        mod = tvm.ir.load_json(request["ir"])
        self._func: tirx.PrimFunc = mod[NAME]
        self._target: Target = resolve(request["target"], cores=request["cores"])
        self._rule: Rule = RULES[request["rule"]]
        self._vector_math: bool = request["vector_math"]
        self._weights = Weights(self._func, request["weights"], request["seed"], request["l3_bytes"])
        self._build_s = 0.0
        self._sizes = [self._arguments(dims, request) for dims in request["sizes"]]
        self._built: dict[int, tvm.runtime.Module] = {}
        self._checked: list[tuple[Arguments, list]] = []
        if request["key"] not in defaults:
            start = time.perf_counter()
            defaults[request["key"]] = build(self._schedule(request["default"]), self._target)
            self._build_s = time.perf_counter() - start
        self._built[p.DEFAULT_ID] = defaults[request["key"]]
        if request["compare"]:
            self._prepare_checks(request)
        self._probe: int = request["probe"]
        self._first_us = self._run_once(p.DEFAULT_ID)

    @property
    def reply(self) -> dict:
        return {"first_us": self._first_us, "build_s": self._build_s}

    def build(self, request: dict) -> dict:
        """Schedule, build, check and run one candidate once."""
        start = time.perf_counter()
        module = build(self._schedule(request["decision"]), self._target)
        seconds = time.perf_counter() - start
        for arguments, expected in self._checked:
            wrong = differences(_results(module, arguments), expected)
            if wrong:
                raise Failed(p.WRONG_RESULT, f"differs from the reference: {wrong}")
        self._built[request["id"]] = module
        first = self._run_once(request["id"])
        if first > _HOPELESS * self._first_us:
            del self._built[request["id"]]
            raise Failed(p.SLOWER, f"{first:.0f} us at its first run, the default takes {self._first_us:.0f} us")
        return {"build_s": seconds, "first_us": first}

    def race(self, request: dict, say: Callable[[dict], None]) -> dict:
        """Time the candidates in turns, round by round; every round begins with another one."""
        arguments, number = self._sizes[request["size"]], request["number"]
        ids: list[int] = request["ids"]
        samples: dict[int, list[float]] = {i: [] for i in ids}
        for turn in range(request["rounds"]):
            shift = turn % len(ids)
            for i in (*ids[shift:], *ids[:shift]):
                say({"turn": i})
                samples[i].append(_turn(self._built[i], arguments, number))
        return {"us": {str(i): us for i, us in samples.items()}}

    def drop(self, ids: Iterable[int]) -> None:
        for i in ids:
            self._built.pop(i, None)

    def _arguments(self, dims: list[int], request: dict) -> Arguments:
        return Arguments(self._func, dims, request["outputs"], self._weights, request["seed"])

    def _schedule(self, fields: dict) -> tirx.PrimFunc:
        decision = decision_from_plain(self._rule.Decision, fields)
        return scheduled_by(self._rule, self._func, self._target, decision, vector_math=self._vector_math)

    def _prepare_checks(self, request: dict) -> None:
        """Expected results: of the unscheduled function where that is affordable, else of the default."""
        plain = build(self._func, self._target)
        for dims, by_default in request["checked"]:
            arguments = self._arguments(dims, request)
            default = _results(self._built[p.DEFAULT_ID], arguments)
            expected = default if by_default else _results(plain, arguments)
            wrong = differences(default, expected)
            if wrong:
                raise Failed(p.WRONG_RESULT, f"the default differs from the unscheduled function at {dims}: {wrong}")
            self._checked.append((arguments, expected))

    def _run_once(self, i: int) -> float:
        """Microseconds of a call at the probed size: the best of three, or the first when it takes long."""
        function, arguments = self._built[i][NAME], self._sizes[self._probe]
        first = _timed(function, arguments, 1)
        return first if first > _LONG_US else min(first, *(_timed(function, arguments, 1) for _ in range(2)))


def _results(module: tvm.runtime.Module, arguments: Arguments) -> list:
    arguments.spoil()
    module[NAME](*arguments.first)
    return arguments.results()


def _turn(module: tvm.runtime.Module, arguments: Arguments, number: int) -> float:
    """Microseconds per call, the mean of `number` calls after a pause.

    Short calls follow one that wakes the threads; a long one (`number` is 1) does not notice the difference.
    """
    time.sleep(_PAUSE_S)
    function = module[NAME]
    if number > 1:
        function(*arguments.one())
    if arguments.is_cold:
        return _timed(function, arguments, number)
    seconds = module.time_evaluator(NAME, tvm.cpu(), number=number, repeat=1)(*arguments.one()).results[0]
    return float(seconds) * 1e6


def _timed(function: tvm.runtime.PackedFunc, arguments: Arguments, number: int) -> float:
    sets = list(arguments.turns(number))
    start = time.perf_counter()
    for values in sets:
        function(*values)
    return (time.perf_counter() - start) / number * 1e6


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer requests until they end."""

    def say(message: dict) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    bench: Bench | None = None
    defaults: dict[str, tvm.runtime.Module] = {}  # a task is opened twice: for its latency, then for its search
    say({"ok": True, "pid": os.getpid(), "threads": int(tvm.get_global_func("runtime.NumThreads")())})
    for line in requests:
        request = json.loads(line)
        try:
            if request["op"] == p.OPEN:
                bench = None  # frees the memory of the task before
                bench = Bench(request, defaults)
                say({"ok": True, **bench.reply})
                continue
            assert bench is not None, "a task must be opened first"
            if request["op"] == p.BUILD:
                say({"ok": True, **bench.build(request)})
            elif request["op"] == p.RACE:
                say({"ok": True, **bench.race(request, say)})
            elif request["op"] == p.DROP:
                bench.drop(request["ids"])
                say({"ok": True})
            else:
                raise AssertionError(f"no such request: {request['op']}")
        except Failed as failed:
            say({"error": failed.kind, "message": str(failed)})
        except Declined as declined:
            say({"error": p.DECLINED, "message": str(declined)})
        except Exception as error:  # the process boundary: whatever a candidate raises is its failure
            say({"error": _kind(error, request["op"]), "message": f"{type(error).__name__}: {str(error)[-400:]}"})


def _kind(error: Exception, op: str) -> str:
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in _OUT_OF_MEMORY):
        return p.OUT_OF_MEMORY
    return p.RUN_ERROR if op == p.RACE else p.BUILD_ERROR


def _limit_memory(more_bytes: int) -> None:
    """Let data grow by `more_bytes` from here; what is mapped already (TVM's libraries) does not count."""
    with open("/proc/self/status", encoding="ascii") as status:
        data = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + more_bytes, data + more_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_with_parent() -> None:
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def main() -> int:
    """Arguments: bytes of memory, then modules to import (rules that no entry point names)."""
    _die_with_parent()
    # Whatever a kernel or LLVM prints must not end up among the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    load_plugins()
    for module in sys.argv[2:]:
        importlib.import_module(module)
    _limit_memory(int(sys.argv[1]))
    serve(sys.stdin, replies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
