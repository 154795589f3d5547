"""What the scripts that compare kernels share: a process per engine, turns in the benchmark's order, results compared.

An engine is a function from a case (plain values) to a `Kernel`; `work` serves it in a worker. The other end starts
workers, has them prepare a case (which compares results) and times them with `race`: a turn is a pause, one untimed
call and calls for some milliseconds, and its sample is the median call.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from halo_tvm.errors import PeerFailed, ValidationFailed
from halo_tvm.peers.client import LOAD_TIMEOUT_S, Peer
from halo_tvm.peers.load_meter import LoadMeter
from halo_tvm.peers.order import in_turn
from halo_tvm.peers.protocol import answer_all
from halo_tvm.peers.statistics import relative_l2
from halo_tvm.report import tables

if TYPE_CHECKING:
    from tvm import tirx

    from halo_tvm.targets import Target
    from halo_tvm.tir_schedules.rule import Rule

SAMPLED = 256  # numbers of a result, evenly spaced, that engines are compared by
PAUSE_S = 0.04  # worker pools that still spin would take cores from whoever runs next


@dataclass(frozen=True)
class Kernel:
    """A case made ready: what is timed, and its result (of what the call gives) as one array."""

    call: Callable[[], object]
    result: Callable[[object], np.ndarray]


@dataclass(frozen=True)
class Entry:
    """What takes a turn: a worker with one of its cases. `same`: its result has to be the first entry's."""

    name: str
    worker: Peer
    case: object
    same: bool = True


def work(prepare: Callable[[object], Kernel] | None = None, **values: Callable[[object], float]) -> None:
    """Worker: answer "prepare", "time" and "forget"; `values` are commands of its own, from a case to a number."""
    kernels: dict[str, Kernel] = {}

    def execute(message: dict[str, object]) -> dict[str, object]:
        command, case = message["command"], message.get("case")
        if command in values:
            return {"value": values[str(command)](case)}
        if command == "forget":
            kernels.clear()
            return {}
        key = json.dumps(case)
        if command == "prepare":
            kernels[key] = prepare(case)
            found = kernels[key].result(kernels[key].call()).reshape(-1)
            return {"sample": found[sampled(found.size)].astype(float).tolist()}
        return {"us": turn(kernels[key].call, float(message["seconds"]), float(message["pause_s"]))}

    answer_all(execute)


def sampled(size: int) -> np.ndarray:
    """The places of a flat result of `size` numbers that engines are compared by."""
    return np.linspace(0, size - 1, min(SAMPLED, size)).astype(int)


def turn(call: Callable[[], object], seconds: float, pause_s: float) -> float:
    """The median call in microseconds."""
    time.sleep(pause_s)
    call()
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


@contextmanager
def started(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str] | None = None
) -> Iterator[dict[str, Peer]]:
    """A worker of each name, ended at the end."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Peer(name, command, environment)) for name, command in commands.items()}


def workers(
    script: str, names: Sequence[str], threads: int, *arguments: str, environment: Mapping[str, str] | None = None
) -> AbstractContextManager[dict[str, Peer]]:
    """`script --worker NAME ARGUMENTS` for each name, ended at the end."""
    variables = {"OMP_NUM_THREADS": str(threads), "TVM_NUM_THREADS": str(threads), **(environment or {})}
    return started({name: [sys.executable, script, "--worker", name, *arguments] for name in names}, variables)


def compiled(
    func: tirx.PrimFunc, rule: Rule, target: Target, changes: Mapping[str, object] | None = None
) -> Callable[..., None]:
    """`func` by `rule`, as a model's functions are compiled, but for `changes` of its decision."""
    import tvm

    from halo_tvm.code_generation import build_options
    from halo_tvm.passes.schedule import scheduled_by

    decision = dataclasses.replace(rule.default(func, target), **(changes or {}))
    func = scheduled_by(rule, func, target, decision).with_attr("global_symbol", "main")
    with tvm.transform.PassContext(config=build_options(target)):
        return tvm.compile(tvm.IRModule({"main": func}), target=target.tvm)["main"]


def left_out(entry: Entry, failure: PeerFailed | ValidationFailed) -> None:
    """Name on standard error what has failed; a result that differs ends the script."""
    if isinstance(failure, ValidationFailed):
        raise SystemExit(str(failure))
    print(f"left out: {failure}", file=sys.stderr, flush=True)


def prepared(
    entries: Iterable[Entry],
    limit: float,
    expected: np.ndarray | None = None,
    failed: Callable[[Entry, PeerFailed | ValidationFailed], None] = left_out,
    timeout_s: Callable[[], float] = lambda: LOAD_TIMEOUT_S,
) -> list[Entry]:
    """The entries that are ready. The first is ours: its failure is raised; what others fail at is for `failed`.

    It is a failure, too, when a result is not within `limit` (relative L2) of `expected`, or without one of ours.
    """
    ready: list[Entry] = []
    for entry in entries:
        try:
            found = np.array(entry.worker.ask("prepare", timeout_s=timeout_s(), case=entry.case)["sample"])
            expected = found if expected is None else expected
            error = relative_l2(found, expected)
            if entry.same and not error <= limit:
                raise ValidationFailed(
                    f"{entry.name} at {entry.case}: expected our result within {limit:g}, found {error:.1e} beside it: "
                    "one of the two is wrong, or compares something else"
                )
        except (PeerFailed, ValidationFailed) as failure:
            if not ready:
                raise
            failed(entry, failure)
        else:
            ready.append(entry)
    return ready


def race(
    entries: Sequence[Entry], rounds: int, seconds: float, pause_s: float = PAUSE_S, timeout_s: float = LOAD_TIMEOUT_S
) -> dict[str, list[float]]:
    """Microseconds by name, one sample per round, of entries that are `prepared`; workers then forget their cases.

    `PeerFailed` when a turn takes longer than `timeout_s`.
    """
    samples: dict[str, list[float]] = {entry.name: [] for entry in entries}
    for index in range(rounds):
        for entry in in_turn(entries, index):
            reply = entry.worker.ask("time", timeout_s=timeout_s, case=entry.case, seconds=seconds, pause_s=pause_s)
            samples[entry.name].append(float(reply["us"]))
    for entry in entries:
        entry.worker.ask("forget")
    return samples


def disturbance(meter: LoadMeter) -> str:
    """A line for below the tables; empty where the machine was ours."""
    said = tables.disturbance(meter.other_cores())
    return f"\n{said}\n" if said else ""
