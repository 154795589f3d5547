"""Every call of one run in order: which function, on which shapes, with which weights, how long.

Runs without and with the instrument take turns, so that the whole run and its parts belong to the same minutes.
An instrumented call carries the instrument's own time; what a call of next to nothing shows is that time, and is
taken off every call. A function that calls others is no call of its own: what it does is theirs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi

from ..errors import EnvironmentProblem
from ..launcher import DENSE, ROWS
from ..peak_memory import peak_rss_mib
from .session import Session

# What is no kernel: the virtual machine's own (memory, shapes, views), the library's check of tensors and its views.
BUILTINS = ("vm.builtin.", "shape_func", DENSE, ROWS)

Argument = tuple[int, ...] | int | None  # a tensor's shape, a number, anything else


@dataclass(frozen=True)
class Call:
    """One call of a run."""

    function: str
    arguments: tuple[Argument, ...]
    weights: tuple[int | None, ...]  # per argument: which weight it is, in order of the function's params
    us: float  # median over the rounds, without the instrument's own time

    @property
    def builtin(self) -> bool:
        """Whether the virtual machine made the call for itself."""
        return self.function.startswith(BUILTINS)


@dataclass(frozen=True)
class Trace:
    """One run, seen several times."""

    calls: tuple[Call, ...]
    run_us: float  # the whole run without the instrument, median
    rounds: int
    instrument_us: float  # that was taken off every call
    peak_rss_mib: float  # of this process after its first run


def trace(session: Session, inputs: Sequence[tvm_ffi.Tensor], rounds: int) -> Trace:
    """Run `rounds` times without and `rounds` times with the instrument, in turns, after one run of each.

    Raises
    ------
    EnvironmentProblem
        the library's graph is machine code, whose calls cannot be observed
    """
    places = {tensor.data_ptr(): index for index, tensor in enumerate(session.arguments)}
    device = session.device
    seen: list[tuple[str, tuple[Argument, ...], tuple[int | None, ...]]] = []
    durations: list[list[int]] = []
    open_calls: list[int] = []  # places in the order of calls: of one in which others happen, and of those
    containing: set[int] = set()

    def describe(func: object, name: str, before: bool, ret: object, *args: object) -> int:
        if before:
            given = [a if isinstance(a, tvm_ffi.Tensor) else None for a in args]
            shapes = tuple(_argument(a) for a in args)
            containing.update(open_calls)
            open_calls.append(len(seen))
            seen.append((str(name), shapes, tuple(places.get(t.data_ptr()) if t is not None else None for t in given)))
        else:
            open_calls.pop()
        return 0  # let the call happen

    def clock(func: object, name: str, before: bool, ret: object, *args: object) -> int:
        device.synchronize()
        now = time.perf_counter_ns()
        if before:
            open_calls.append(len(durations[-1]))
            durations[-1].append(-time.perf_counter_ns())
        else:
            durations[-1][open_calls.pop()] += now
        return 0

    def measure() -> tuple[list[float], float]:
        arguments = (*device.keep(inputs), *session.arguments)
        run = session.machine()[session.function]
        run(*arguments)
        memory = peak_rss_mib()  # before the second machine, which holds activations of its own
        watched = session.machine()
        look = watched[session.function]
        look(*arguments)  # what happens once per machine (a CUDA graph is captured) is no part of a run
        watched["set_instrument"](describe)
        look(*arguments)
        watched["set_instrument"](clock)
        whole = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            run(*arguments)
            device.synchronize()
            whole.append((time.perf_counter_ns() - start) / 1e3)
            durations.append([])
            look(*arguments)
        return whole, memory

    whole, memory = session.call(measure)
    if not seen:
        raise EnvironmentProblem(
            "expected a library whose graph is bytecode, found one compiled to machine code, whose calls "
            "cannot be observed; compile the model with the default exec_mode to profile it"
        )
    medians = [statistics.median(times) / 1e3 for times in zip(*durations, strict=True)]
    own = min(medians)
    timed = enumerate(zip(seen, medians, strict=True))
    calls = tuple(Call(*call, us=max(us - own, 0.0)) for at, (call, us) in timed if at not in containing)
    return Trace(calls, statistics.median(whole), rounds, own, memory)


def _argument(value: object) -> Argument:
    if isinstance(value, tvm_ffi.Tensor):
        return tuple(int(d) for d in value.shape)
    return int(value) if isinstance(value, int) else None
