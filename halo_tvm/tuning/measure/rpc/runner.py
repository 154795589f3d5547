"""The process that holds a session: `python -m halo_tvm.tuning.measure.rpc.runner`. It loads and times on the device.

TVM's client waits without end for a server that hangs, and ends its process over some of what a server
says: so it runs here, and not in the tuner. Requests and replies: those of `protocol` for a runner, and CONNECT.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

import tvm
from tvm import rpc

from .. import protocol as p
from ..bench import Bench, Benches
from ..build import NAME
from ..confined import Answer, Say, serve
from ..gpu import MOST_QUEUED
from ..inputs import Arguments
from .serve import DESCRIBE, DESCRIBE_GPU, TIME_ON_GPU

CONNECT = "connect"  # host, port, password, session_s -> threads, triple, described: what the device says of itself
LEAVE = "leave"  # -> nothing: the session is over
PING = "ping"  # -> nothing: this process, and the device if there is a session, answers

_FLUSH = "cache_flush_cpu_non_first_arg"  # of TVM's runtime: before a call, the weights leave the caches
_MOST_BYTES = 1 << 30  # of arguments of tasks that are not in use
_MOST_FLUSHED = 10  # flushing takes longer than many a call


class RemoteBench(Bench):
    """A bench whose libraries run on the device of a session."""

    def __init__(self, request: dict, session: rpc.RPCSession) -> None:
        self._session = session
        self._device = session.cuda(0) if request["gpu"] else session.cpu(0)
        self._time_on_gpu = session.get_function(TIME_ON_GPU) if request["gpu"] else None
        self._cold = bool(request["cold"] and request["weights"])
        self._uploads = 0
        super().__init__(request, self._device, MOST_QUEUED)

    def _module(self, path: str) -> tvm.runtime.Module:
        self._uploads += 1
        name = f"{Path(path).stem}-{self._uploads}.so"
        self._session.upload(path, name)
        module = self._session.load_module(name)
        self._session.remove(name)  # loaded code stays
        return module

    def _once(self, module: tvm.runtime.Module, arguments: Arguments) -> float:
        return self._turn(module, arguments, 1)

    def _turn(self, module: tvm.runtime.Module, arguments: Arguments, number: int) -> float:
        """Timed by the device itself, after a call that wakes its threads."""
        if self._time_on_gpu is not None:
            sets = list(arguments.turns(min(number, MOST_QUEUED)))
            values = [value for one in sets for value in one]
            return float(self._time_on_gpu(module, len(sets), not arguments.is_cold, *values))
        flushed = {"number": 1, "repeat": min(number, _MOST_FLUSHED), "f_preproc": _FLUSH}
        calls = flushed if self._cold else {"number": number, "repeat": 1}
        return mean(module.time_evaluator(NAME, self._device, **calls)(*arguments.first).results) * 1e6


class Runner:
    """One session, and the tasks that are open in it."""

    def __init__(self) -> None:
        self._session: rpc.RPCSession | None = None
        self._benches = Benches(lambda request: RemoteBench(request, self._session), _MOST_BYTES)

    def answer(self, request: dict, say: Say) -> dict:
        op = request["op"]
        if op == CONNECT:
            return self._connect(request)
        if op == PING:
            if self._session is not None:
                self._call("runtime.NumThreads")
            return {}
        if op == LEAVE:
            self._benches.clear()
            self._session = None
            return {}
        return self._benches.answer(request, say)

    def _connect(self, request: dict) -> dict:
        self._session = rpc.connect(request["host"], request["port"], request["password"], request["session_s"])
        return {
            "threads": self._call("runtime.NumThreads"),
            "triple": self._call("target.llvm_get_system_triple"),
            "described": self._call(DESCRIBE),
            "gpu": self._call(DESCRIBE_GPU) if request["gpu"] else None,
        }

    def _call(self, name: str) -> object:
        """What a function of the device returns; None when it has none of that name."""
        try:
            function = self._session.get_function(name)
        except AttributeError:
            return None
        return function()


def _make() -> tuple[Answer, str]:
    return Runner().answer, p.RUN_ERROR


if __name__ == "__main__":
    sys.exit(serve(_make))
