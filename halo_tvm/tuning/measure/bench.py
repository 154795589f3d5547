"""One task in the runner: its arguments, its reference results, and the libraries that are loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tvm
from tvm import tirx

from ..sizes import Env, shape_of, symbols
from . import protocol as p
from .build import NAME
from .confined import Say
from .inputs import Arguments, Weights, disagreement, operand_tolerance

_PAUSE_S = 0.001  # before a turn: the threads of the turn before go to sleep
_LONG_US = 10_000.0
_SMALL = 1 << 17  # output elements: comparing that many takes about a millisecond

Check = tuple[Arguments, list[np.ndarray]]


class Bench:
    """Loads, checks and times libraries of one function. Labels name them; the tuner chooses the labels."""

    def __init__(self, request: dict, device: tvm.runtime.Device | None = None, most_copies: int | None = None) -> None:
        """Arguments lie on `device`; `most_copies` of the weights are enough where caches are emptied otherwise."""
        self._func: tirx.PrimFunc = tvm.ir.load_json(request["ir"])[NAME]
        self._operands = operand_tolerance(self._func)
        self._outputs: list[int] = request["outputs"]
        self._seed: int = request["seed"]
        self._weights = Weights(self._func, request["weights"], self._seed, request["l3_bytes"], device, most_copies)
        self._arguments: dict[tuple[int, ...], Arguments] = {}
        self._sizes: list[tuple[int, ...]] = []
        self._loaded: dict[str, tvm.runtime.Module] = {}
        self._references: list[Check] = []
        self._by_default: list[Check] = []
        self.resize(request["sizes"])

    def resize(self, sizes: Sequence[Sequence[int]]) -> None:
        """Time at these values of the symbolic dimensions."""
        self._sizes = [tuple(dims) for dims in sizes]
        self._by_default = []

    @property
    def bytes(self) -> int:
        """What its arguments take."""
        return self._weights.bytes + sum(a.bytes for a in self._arguments.values())

    def load(self, label: str, path: str, check: str | None, default: str | None) -> None:
        """Load a library and compare its results; `Failed` when they differ."""
        module = self._module(path)
        if check == p.REFERENCES:
            self._compare(module, self._references, "the reference")
        elif check == p.BY_DEFAULT:
            if not self._by_default:
                sizes = self._small_sizes()
                self._by_default = [(a, _results(self._loaded[default], a)) for a in map(self._at, sizes)]
            self._compare(module, self._by_default, "the default at the timed sizes")
        self._loaded[label] = module

    def prepare(self, plain: str, default: str, checked: Iterable[tuple[list[int], bool]]) -> None:
        """Expected results: of the unscheduled function where that is affordable, else of the default."""
        self._references = []
        for dims, by_default in checked:
            arguments = self._at(tuple(dims))
            found = _results(self._loaded[default], arguments)
            expected = found if by_default else _results(self._loaded[plain], arguments)
            wrong = disagreement(found, expected, self._operands)
            if wrong:
                raise p.Failed(p.WRONG_RESULT, f"the default differs from the unscheduled function at {dims}: {wrong}")
            self._references.append((arguments, expected))
        self._loaded.pop(plain, None)

    def probe(self, label: str, size: int) -> float:
        """Microseconds of a call at the size of that index: the best of three, or the first when it takes long."""
        module, arguments = self._loaded[label], self._at(self._sizes[size])
        first = self._once(module, arguments)
        return first if first > _LONG_US else min(first, *(self._once(module, arguments) for _ in range(2)))

    def race(self, labels: list[str], size: int, rounds: int, number: int, say: Say) -> dict[str, list[float]]:
        """Time libraries in turns, round by round; every round begins with another one."""
        arguments = self._at(self._sizes[size])
        samples: dict[str, list[float]] = {label: [] for label in labels}
        for turn in range(rounds):
            shift = turn % len(labels)
            for label in (*labels[shift:], *labels[:shift]):
                say({"turn": label})
                samples[label].append(self._turn(self._loaded[label], arguments, number))
        return samples

    def drop(self, labels: Iterable[str]) -> None:
        for label in labels:
            self._loaded.pop(label, None)

    # What another device does its own way; see rpc/runner.py.

    def _module(self, path: str) -> tvm.runtime.Module:
        return tvm.runtime.load_module(path)

    def _once(self, module: tvm.runtime.Module, arguments: Arguments) -> float:
        """Microseconds of one call."""
        return _timed(module[NAME], arguments, 1)

    def _turn(self, module: tvm.runtime.Module, arguments: Arguments, number: int) -> float:
        """Microseconds per call, the mean of so many."""
        return _turn(module, arguments, number)

    def _at(self, dims: tuple[int, ...]) -> Arguments:
        if dims not in self._arguments:
            self._arguments[dims] = Arguments(self._func, dims, self._outputs, self._weights, self._seed)
        return self._arguments[dims]

    def _small_sizes(self) -> list[tuple[int, ...]]:
        """The timed sizes whose results are quickly compared; at least the first."""

        def elements(dims: tuple[int, ...]) -> int:
            env: Env = dict(zip(symbols(self._func), dims))
            return sum(int(np.prod(shape_of(self._func.params[i], env), dtype=np.int64)) for i in self._outputs)

        return [dims for at, dims in enumerate(self._sizes) if at == 0 or elements(dims) <= _SMALL]

    def _compare(self, module: tvm.runtime.Module, checks: Iterable[Check], whom: str) -> None:
        for arguments, expected in checks:
            wrong = disagreement(_results(module, arguments), expected, self._operands)
            if wrong:
                raise p.Failed(p.WRONG_RESULT, f"differs from {whom}: {wrong}")


class Benches:
    """The tasks that are open in a process, the least recently used first: they make room for others.

    `most_bytes` is what arguments of tasks that are not in use may take.
    """

    def __init__(self, make: Callable[[dict], Bench], most_bytes: int) -> None:
        self._make, self._most_bytes = make, most_bytes
        self._open: dict[str, Bench] = {}

    def answer(self, request: dict, say: Say) -> dict:
        """The reply to a request that is about one task, see `protocol`."""
        op, bench = request["op"], self._open.get(request["key"])
        if op == p.OPEN:
            return {"evicted": self._opened(request)}
        if op == p.DROP:
            if bench is not None:
                bench.drop(request["labels"])
            return {}
        assert bench is not None, "a task must be opened first"
        if op == p.LOAD:
            bench.load(request["label"], request["path"], request["check"], request.get("default"))
            return {}
        if op == p.PREPARE:
            bench.prepare(request["plain"], request["default"], request["checked"])
            return {}
        if op == p.PROBE:
            return {"us": bench.probe(request["label"], request["size"])}
        assert op == p.RACE, f"no such request: {op}"
        return {"us": bench.race(request["labels"], request["size"], request["rounds"], request["number"], say)}

    def clear(self) -> None:
        self._open.clear()

    def _opened(self, request: dict) -> list[str]:
        """Keys of the tasks that made room for the one of `request`, which is open now."""
        evicted, bench = [], self._open.pop(request["key"], None)
        if bench is not None:
            bench.resize(request["sizes"])
        else:
            while self._open and sum(b.bytes for b in self._open.values()) > self._most_bytes:
                evicted.append(next(iter(self._open)))
                del self._open[evicted[-1]]
            bench = self._make(request)
        self._open[request["key"]] = bench
        return evicted


def _results(module: tvm.runtime.Module, arguments: Arguments) -> list[np.ndarray]:
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


def _timed(function: Callable[..., None], arguments: Arguments, number: int) -> float:
    sets = list(arguments.turns(number))
    start = time.perf_counter()
    for values in sets:
        function(*values)
    return (time.perf_counter() - start) / number * 1e6
