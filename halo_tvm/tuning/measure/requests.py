"""What every lab of ours asks of its processes, and by which rules."""

from __future__ import annotations

from collections.abc import Callable

import tvm

from ...targets import Target
from ..sizes import iterations, symbols
from ..task import Task
from . import protocol as p
from .build import NAME
from .lab import Failure

OPEN_TIMES = 6  # opening a task runs an unscheduled function, and nobody is to blame but the default
SLOW_BUILDS = 3.0  # code that takes long to generate does so for every decision
_DEVICE_COMPILER_TIMES = 6.0  # the device's own compiler takes seconds where LLVM takes tenths,
_DEVICE_COMPILER_BYTES = 2 << 30  # and memory
_TURN_S = 0.002  # a turn lasts at least this long
_MOST_CALLS = 500
_BUILDER_BYTES = 1 << 30
_AFFORDABLE = 3e8  # iterations of an unscheduled function worth waiting for
_HOPELESS = 3.0  # a candidate this much slower than the default at its first run is not timed


def task_request(task: Task, target: Target, vector_math: bool) -> dict:
    """TASK of the protocol."""
    return {
        "op": p.TASK,
        "key": task.key,
        "ir": tvm.ir.save_json(tvm.IRModule({NAME: task.func})),
        "rule": task.rule.name,
        "target": target.name,
        "cores": target.cores,
        "vector_math": vector_math,
    }


def build_timeout_s(target: Target, timeout_s: float) -> float:
    """How long a candidate for `target` may take to build, where `timeout_s` is the limit for a CPU."""
    return timeout_s * (_DEVICE_COMPILER_TIMES if target.spec.gpu else 1.0)


def builder_bytes(target: Target, share_bytes: int) -> int:
    """The memory of a process that builds for `target`, where `share_bytes` is its part of what there is."""
    return max(_DEVICE_COMPILER_BYTES if target.spec.gpu else _BUILDER_BYTES, share_bytes)


def checks_of(task: Task) -> list[tuple[tuple[int, ...], bool]]:
    """(size, whether the default has to stand for the unscheduled function there)."""
    names = symbols(task.func)
    checked = [(dims, iterations(task.func, dict(zip(names, dims))) > _AFFORDABLE) for dims in task.checked]
    # One affordable size is enough: the default is compared with the unscheduled function there.
    affordable = [c for c in checked if not c[1]]
    return affordable or checked


def race_request(labels: list[str], size: int, rounds: int, default_us: float) -> tuple[dict, float]:
    """RACE of the protocol, and the seconds that it takes when a call takes about `default_us`."""
    number = int(min(_MOST_CALLS, max(1, _TURN_S * 1e6 // max(default_us, 1.0))))
    request = {"op": p.RACE, "labels": labels, "size": size, "rounds": rounds, "number": number}
    return request, rounds * len(labels) * (number + 1) * default_us * 1e-6


def worth_timing(probe: Callable[[], float], default_us: float, candidate: int) -> float:
    """The first time of a candidate in us; `Failure` with `protocol.SLOWER` when it is hopeless twice.

    A long call is a single shot, which other work on the machine may have met.
    """
    us = probe()
    if us > _HOPELESS * default_us:
        us = min(us, probe())
    if us > _HOPELESS * default_us:
        raise Failure(p.SLOWER, f"{us:.0f} us at its first run, the default takes {default_us:.0f} us", candidate)
    return us
