"""The process that holds a session: `python -m halo_tvm.tuning.measure.rpc.runner`. It loads and times on the device.

TVM's client waits without end for a server that hangs, and ends its process over some of what a server
says: so it runs here, and not in the tuner. Requests and replies: those of `protocol` for a runner, and CONNECT.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import mean

import tvm
from tvm import rpc

from .. import protocol as p
from ..build import NAME
from ..confined import Answer, Failed, Say, serve
from ..inputs import Arguments, Weights, differences
from .serve import DESCRIBE

CONNECT = "connect"  # host, port, password, session_s -> threads, triple, described: what the device says of itself
LEAVE = "leave"  # -> nothing: the session is over
PING = "ping"  # -> nothing: this process, and the device if there is a session, answers

_FLUSH = "cache_flush_cpu_non_first_arg"  # of TVM's runtime: before a call, the weights leave the caches
_MOST_BYTES = 1 << 30  # of arguments of tasks that are not in use; those used longest ago make room
_MOST_FLUSHED = 10  # flushing takes longer than many a call
_LONG_US = 10_000.0


class _Task:
    """One function: its arguments on the device, its reference results, and the libraries that are loaded."""

    def __init__(self, request: dict, device: tvm.runtime.Device) -> None:
        self._func = tvm.ir.load_json(request["ir"])[NAME]
        self._outputs: list[int] = request["outputs"]
        self._seed: int = request["seed"]
        self._weights = Weights(self._func, request["weights"], self._seed, 0, device)
        self._arguments: dict[tuple[int, ...], Arguments] = {}
        self.cold = bool(request["cold"] and request["weights"])
        self.sizes: list[list[int]] = request["sizes"]
        self.loaded: dict[str, tvm.runtime.Module] = {}
        self.expected: list[tuple[Arguments, list]] = []

    @property
    def bytes(self) -> int:
        return self._weights.bytes + sum(a.bytes for a in self._arguments.values())

    def at(self, dims: Sequence[int]) -> Arguments:
        """The arguments at these values of the symbolic dimensions."""
        if tuple(dims) not in self._arguments:
            self._arguments[tuple(dims)] = Arguments(self._func, dims, self._outputs, self._weights, self._seed)
        return self._arguments[tuple(dims)]


class Runner:
    """One session, and the tasks that are open in it, the latest last."""

    def __init__(self) -> None:
        self._session: rpc.RPCSession | None = None
        self._tasks: dict[str, _Task] = {}
        self._device: tvm.runtime.Device | None = None
        self._uploads = 0

    def answer(self, request: dict, say: Say) -> dict:
        op = request["op"]
        if op == CONNECT:
            return self._connect(request)
        if op == PING:
            if self._session is not None:
                self._call("runtime.NumThreads")
            return {}
        if op == LEAVE:
            self._tasks.clear()
            self._session = self._device = None
            return {}
        if op == p.OPEN:
            return {"evicted": self._open(request)}
        task = self._tasks[request["key"]]
        if op == p.LOAD:
            self._load(task, request)
            return {}
        if op == p.PREPARE:
            self._prepare(task, request)
            return {}
        if op == p.PROBE:
            return {"us": self._probe(task, request["label"], request["size"])}
        if op == p.RACE:
            return self._race(task, request, say)
        assert op == p.DROP, f"no such request: {op}"
        for label in request["labels"]:
            task.loaded.pop(label, None)
        return {}

    def _connect(self, request: dict) -> dict:
        self._session = rpc.connect(request["host"], request["port"], request["password"], request["session_s"])
        self._device = self._session.cpu(0)
        return {
            "threads": self._call("runtime.NumThreads"),
            "triple": self._call("target.llvm_get_system_triple"),
            "described": self._call(DESCRIBE),
        }

    def _call(self, name: str) -> object:
        """What a function of the device returns; None when it has none of that name."""
        try:
            function = self._session.get_function(name)
        except AttributeError:
            return None
        return function()

    def _open(self, request: dict) -> list[str]:
        """Keys of the tasks that made room."""
        key = request["key"]
        task, evicted = self._tasks.pop(key, None), []
        if task is None:
            while self._tasks and sum(t.bytes for t in self._tasks.values()) > _MOST_BYTES:
                evicted.append(next(iter(self._tasks)))
                del self._tasks[evicted[-1]]
            task = _Task(request, self._device)
        task.sizes = request["sizes"]
        self._tasks[key] = task
        return evicted

    def _load(self, task: _Task, request: dict) -> None:
        self._uploads += 1
        name = f"candidate{self._uploads}.so"
        self._session.upload(request["path"], name)
        module = self._session.load_module(name)
        self._session.remove(name)  # loaded code stays
        if request["check"] == p.REFERENCES:
            for arguments, expected in task.expected:
                wrong = differences(_results(module, arguments), expected)
                if wrong:
                    raise Failed(p.WRONG_RESULT, f"differs from the reference: {wrong}")
        task.loaded[request["label"]] = module

    def _prepare(self, task: _Task, request: dict) -> None:
        """Expected results: of the unscheduled function where that is affordable, else of the default."""
        task.expected.clear()
        plain, default = task.loaded[request["plain"]], task.loaded[request["default"]]
        for dims, by_default in request["checked"]:
            arguments = task.at(dims)
            found = _results(default, arguments)
            expected = found if by_default else _results(plain, arguments)
            wrong = differences(found, expected)
            if wrong:
                raise Failed(p.WRONG_RESULT, f"the default differs from the unscheduled function at {dims}: {wrong}")
            task.expected.append((arguments, expected))
        task.loaded.pop(request["plain"])

    def _probe(self, task: _Task, label: str, size: int) -> float:
        """Microseconds of a call: the best of three, or the first when it takes long."""
        first = self._turn(task, label, size, 1)
        return first if first > _LONG_US else min(first, *(self._turn(task, label, size, 1) for _ in range(2)))

    def _race(self, task: _Task, request: dict, say: Say) -> dict:
        """Time the candidates in turns, round by round; every round begins with another one."""
        labels: list[str] = request["labels"]
        samples: dict[str, list[float]] = {label: [] for label in labels}
        for turn in range(request["rounds"]):
            shift = turn % len(labels)
            for label in (*labels[shift:], *labels[:shift]):
                say({"turn": label})
                samples[label].append(self._turn(task, label, request["size"], request["number"]))
        return {"us": samples}

    def _turn(self, task: _Task, label: str, size: int, number: int) -> float:
        """Microseconds per call, timed by the device itself, after a call that wakes its threads."""
        flushed = {"number": 1, "repeat": min(number, _MOST_FLUSHED), "f_preproc": _FLUSH}
        calls = flushed if task.cold else {"number": number, "repeat": 1}
        evaluate = task.loaded[label].time_evaluator(NAME, self._device, **calls)
        return mean(evaluate(*task.at(task.sizes[size]).first).results) * 1e6


def _results(module: tvm.runtime.Module, arguments: Arguments) -> list:
    arguments.spoil()
    module[NAME](*arguments.first)
    return arguments.results()


def _make() -> tuple[Answer, str]:
    return Runner().answer, p.RUN_ERROR


if __name__ == "__main__":
    sys.exit(serve(_make))
