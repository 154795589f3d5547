"""The tuner's side of the measurement worker: starts it, watches it, starts it again when it dies."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm

from ...errors import EnvironmentProblem
from ...records.decision import decision_to_plain
from ...targets import Target
from ..sizes import iterations, symbols
from ..task import Task
from . import protocol as p
from .build import NAME
from .lab import Failure

_START_S = 120.0  # importing TVM on a loaded machine
_TURN_S = 0.002  # a turn lasts at least this long
_MOST_CALLS = 500
_OPEN_TIMES = 6  # opening a task builds twice, runs an unscheduled function, and nobody is to blame but the default
_AFFORDABLE = 3e8  # iterations of an unscheduled function worth waiting for
_MEMORY_WORDS = ("bad_alloc", "out of memory", "Cannot allocate memory", "MemoryError")


@dataclass(frozen=True)
class WorkerOptions:
    threads: int
    memory_bytes: int
    timeout_s: float = 20.0  # for one candidate's build and check, and on top of a race's expected time
    modules: tuple[str, ...] = ()  # imported by the worker: they register further rules
    vector_math: bool = True  # as the pass of that name is on or off in `compile`


class Worker:
    """One measurement process. Use it as a context manager; every method may raise `Failure`."""

    def __init__(self, target: Target, options: WorkerOptions, *, seed: int, l3_bytes: int) -> None:
        self._target = target
        self._options = options
        self._seed = seed
        self._l3_bytes = l3_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._task: Task | None = None
        self._compare = True
        self._ordered: dict[int, object] = {}  # not built yet
        self._decisions: dict[int, object] = {}  # built candidates of the open task
        self._next_id = p.DEFAULT_ID + 1
        self._first_us = 0.0
        self._slowest_s: dict[str, float] = {}  # seconds the default's build took, by task
        self.restarts = -1  # the first start is none
        self.threads = options.threads

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process at once; the next request starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                pipe.close()
            self._stderr.close()
            self._process = None

    def open(self, task: Task, *, compare: bool = True) -> float:
        """Make `task` the current one. Returns the default's first time in us at its heaviest size.

        Without `compare` nothing is checked, and the time is that at its lightest size.
        """
        self._task, self._compare, self._ordered, self._decisions = task, compare, {}, {}
        self._open()
        return self._first_us

    def order(self, decisions: Sequence[object]) -> list[int]:
        """Note candidates of the open task; `take` builds them."""
        first, self._next_id = self._next_id, self._next_id + len(decisions)
        ordered = dict(enumerate(decisions, first))
        self._ordered.update(ordered)
        return list(ordered)

    def take(self, candidate: int) -> float:
        """Build and check a candidate that was ordered; returns its first time in us."""
        self._ensure_open()
        decision = self._ordered.pop(candidate)
        first_us = self._build(candidate, decision)
        self._decisions[candidate] = decision
        return first_us

    def final(self, candidate: int) -> None:
        """Nothing to do: every candidate is built and checked in full."""

    def drop(self, candidates: Sequence[int]) -> None:
        """Free candidates."""
        for candidate in candidates:
            self._ordered.pop(candidate, None)
            self._decisions.pop(candidate, None)
        if self._process is not None:
            self._ask({"op": p.DROP, "ids": list(candidates)}, self._options.timeout_s)

    def race(self, candidates: Sequence[int], size: int, rounds: int, default_us: float) -> dict[int, list[float]]:
        """Samples in us of each candidate at the size of that index, taken in turns.

        `default_us`, about what one call takes, sets how many calls a turn has and how long to wait.
        """
        self._ensure_open()
        number = int(min(_MOST_CALLS, max(1, _TURN_S * 1e6 // max(default_us, 1.0))))
        expected_s = rounds * len(candidates) * (number + 1) * default_us * 1e-6
        request = {"op": p.RACE, "ids": list(candidates), "size": size, "rounds": rounds, "number": number}
        reply = self._ask(request, self._options.timeout_s + 10 * expected_s)
        return {int(i): us for i, us in reply["us"].items()}

    def _open(self) -> None:
        task = self._task
        assert task is not None, "open a task first"
        names = symbols(task.func)
        checked = [(dims, iterations(task.func, dict(zip(names, dims))) > _AFFORDABLE) for dims in task.checked]
        # One affordable size is enough: the default is compared with the unscheduled function there.
        if any(not by_default for _, by_default in checked):
            checked = [c for c in checked if not c[1]]
        request = {
            "op": p.OPEN,
            "key": task.key,
            "ir": tvm.ir.save_json(tvm.IRModule({NAME: task.func})),
            "rule": task.rule.name,
            "target": self._target.name,
            "cores": self._target.cores,
            "default": decision_to_plain(task.default),
            "sizes": [s.dims for s in task.sizes],
            "checked": checked,
            "outputs": task.outputs,
            "weights": task.weights,
            "seed": self._seed,
            "l3_bytes": self._l3_bytes,
            "compare": self._compare,
            "probe": len(task.sizes) - 1 if self._compare else 0,
            "vector_math": self._options.vector_math,
        }
        reply = self._ask(request, _OPEN_TIMES * self._options.timeout_s)
        self._first_us = reply["first_us"]
        self._slowest_s[task.key] = max(reply["build_s"], self._slowest_s.get(task.key, 0.0))

    def _ensure_open(self) -> None:
        """After a crash: a new process with the task and its surviving candidates."""
        if self._process is not None:
            return
        self._open()
        for candidate, decision in list(self._decisions.items()):
            self._build(candidate, decision)

    def _build(self, candidate: int, decision: object) -> float:
        request = {"op": p.BUILD, "id": candidate, "decision": decision_to_plain(decision)}
        try:
            # Code that takes long to generate does so for every decision.
            expected_s = self._slowest_s[self._task.key]
            return float(self._ask(request, self._options.timeout_s + 3 * expected_s)["first_us"])
        except Failure as failure:
            self._decisions.pop(candidate, None)
            raise Failure(failure.kind, str(failure), candidate) from failure

    def _ask(self, request: dict, timeout_s: float) -> dict:
        if self._process is None:
            self._start()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died(None) from None
        deadline = time.monotonic() + timeout_s
        blamed: int | None = None
        while True:
            message = self._read(deadline, blamed, timeout_s)
            if "turn" in message:
                blamed = message["turn"]
            elif message.get("ok"):
                return message
            else:
                raise Failure(message["error"], message["message"], blamed)

    def _read(self, deadline: float, blamed: int | None, timeout_s: float) -> dict:
        handle = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._forget(blamed)
                self.close()
                raise Failure(p.TIMEOUT, f"no answer within {timeout_s:.0f} s", blamed)
            data = os.read(handle, 1 << 16)
            if not data:
                raise self._died(blamed)
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def _died(self, blamed: int | None) -> Failure:
        """Why the process ended, from its exit status and its last words."""
        code = self._process.wait()
        self._stderr.seek(0)
        words = self._stderr.read()[-2000:].decode(errors="replace").strip()
        self._forget(blamed)
        self.close()
        # Nobody but the kernel's out-of-memory killer sends our child a SIGKILL here.
        memory = code == -9 or any(word in words for word in _MEMORY_WORDS)
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return Failure(p.OUT_OF_MEMORY if memory else p.CRASH, f"the worker ended with {how}: {words[-300:]}", blamed)

    def _forget(self, blamed: int | None) -> None:
        if blamed is not None:
            self._decisions.pop(blamed, None)

    def _start(self) -> None:
        self.restarts += 1
        self._buffer = b""
        self._stderr = tempfile.TemporaryFile()
        threads = str(self._options.threads)
        package = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(filter(None, (package, *sys.path)))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "halo_tvm.tuning.measure.worker",
                str(self._options.memory_bytes),
                *self._options.modules,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "TVM_NUM_THREADS": threads, "TVM_BIND_THREADS": "0", "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C reaches the tuner only, which then ends the worker
        )
        try:
            self._read(time.monotonic() + _START_S, None, _START_S)
        except Failure as failure:
            raise EnvironmentProblem(
                f"a measurement worker was expected to start, but it ended before its first answer: {failure}: "
                "run `halo-tvm doctor` to check this installation"
            ) from failure
