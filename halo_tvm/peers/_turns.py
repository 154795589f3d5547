"""Engines timed in turns: each in its own process, failures kept with the engine that fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..differences import differences
from ..report.schema import Accuracy, EngineResult
from ._running import Running, check_installed
from .client import Peer
from .load_meter import LoadMeter
from .messages import without_folders
from .order import in_turn
from .protocol import PAUSE_S, LoadRequest, split_cases
from .statistics import percentiles_ms, relative_l2

TURN_MS = 250.0  # a turn is long enough that clock granularity and wake-up do not show
LEAST_RUNS, MOST_RUNS = 3, 20  # one run alone says nothing of the engine: the median of three leaves a bad one out
SLOW_S = 1.0  # a run that long is a turn by itself
SLOW_RATIO = 20.0  # an engine beyond both has no run before its turns: it would keep the others waiting for minutes


@dataclass(frozen=True)
class Contestant:
    """An engine ready to start; `failure` says why it cannot be. `known`: its earlier errors, by version."""

    name: str
    command: Sequence[str]
    request: LoadRequest | None
    failure: str | None = None
    missing: bool = False
    precision: str = "fp32"
    known: Mapping[str, Accuracy] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Running(Running):
    """A started engine and what it has given so far."""

    contestant: Contestant
    run_s: float = 0.0
    load_s: float | None = None
    samples: list[float] = field(default_factory=list)
    peak_rss_mib: float | None = None
    accuracy: Accuracy | None = None


def take_turns(
    contestants: Sequence[Contestant], rounds: int, reference: Path | None, directory: Path
) -> tuple[list[EngineResult], int, float | None]:
    """Start all engines, time them in turns, then ask memory and accuracy.

    `in_turn` has the order: who goes first and whom an engine follows change with every round.

    Returns the results, the runs per turn, and how many cores other processes kept busy meanwhile.

    The first contestant is ours: its failure is raised. A peer that fails is reported and the others go on.
    """
    with ExitStack() as stack:
        running = [_start(contestant, stack, ours=index == 0) for index, contestant in enumerate(contestants)]
        check_installed(running[1:])
        ours_ms = min(running[0].peer.ask("time", runs=2, pause_s=PAUSE_S)["milliseconds"])
        runs = runs_per_turn(ours_ms)
        meter = LoadMeter()
        for index in range(rounds):
            for engine in in_turn(running, index):
                slow = engine.run_s > max(SLOW_S, SLOW_RATIO * ours_ms / 1e3)
                engine.attempt(lambda e=engine, s=slow: e.samples.append(_turn(e.peer, 1 if s else runs, warm=not s)))
        other = meter.other_cores()
        for engine in running:
            engine.attempt(lambda e=engine: _finish(e, reference, directory))
        check_installed(running[1:])
    return [_engine_result(engine) for engine in running], runs, other


def runs_per_turn(run_ms: float) -> int:
    """How many runs of `run_ms` make a turn."""
    return 1 if run_ms > SLOW_S * 1e3 else max(LEAST_RUNS, min(MOST_RUNS, round(TURN_MS / run_ms)))


def _start(contestant: Contestant, stack: ExitStack, *, ours: bool) -> _Running:
    engine = _Running(contestant=contestant, ours=ours, failure=contestant.failure, missing=contestant.missing)

    def load() -> None:
        reply = engine.load(stack, contestant.name, contestant.command, contestant.request)
        engine.load_s, engine.run_s = float(reply["load_s"]), float(reply["run_s"])

    engine.attempt(load)
    return engine


def _turn(peer: Peer, runs: int, *, warm: bool) -> float:
    return float(np.median(peer.ask("time", runs=runs, pause_s=PAUSE_S, warm=warm)["milliseconds"]))


def _finish(engine: _Running, reference: Path | None, directory: Path) -> None:
    engine.peak_rss_mib = float(engine.peer.ask("memory")["peak_rss_mib"])
    engine.accuracy = engine.contestant.known.get(engine.version)
    if reference is None or engine.accuracy is not None:
        return
    path = directory / "outputs.npz"
    engine.peer.ask("outputs", cases=str(reference), path=str(path))
    with np.load(reference, allow_pickle=False) as expected, np.load(path, allow_pickle=False) as found:
        engine.accuracy = accuracy(split_cases(expected, "output"), split_cases(found, "output"))


def accuracy(
    expected: Mapping[str, Mapping[str, np.ndarray]], found: Mapping[str, Mapping[str, np.ndarray]]
) -> Accuracy:
    """The largest errors over all cases and outputs; an output that is missing counts as infinitely wrong."""
    absolute, relative = [0.0], [0.0]
    for case, outputs in expected.items():
        for name, value in outputs.items():
            output = found.get(case, {}).get(name)
            relative.append(float("inf") if output is None else relative_l2(output, value))
            same = output is not None and output.shape == value.shape
            absolute.append(float(differences(output, value).max(initial=0.0)) if same else float("inf"))
    return Accuracy(len(expected), max(absolute), max(relative))


def _engine_result(engine: _Running) -> EngineResult:
    name, precision = engine.contestant.name, engine.contestant.precision
    if engine.failure is not None:
        return EngineResult(name, version=engine.version, failure=without_folders(engine.failure), precision=precision)
    p10, median, p90 = percentiles_ms(engine.samples)
    return EngineResult(
        engine=name,
        version=engine.version,
        samples_ms=tuple(engine.samples),
        median_ms=median,
        p10_ms=p10,
        p90_ms=p90,
        load_s=engine.load_s,
        peak_rss_mib=engine.peak_rss_mib,
        accuracy=engine.accuracy,
        precision=precision,
        note=engine.note,
    )
