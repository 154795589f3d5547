"""An artifact timed against other engines: every engine in its own process, in turns, on the same inputs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..artifact import FunctionSpec, read_manifest, read_reference
from ..config import BenchConfig, parse_sizes
from ..errors import PeerFailed, UnknownName, UnsupportedModel, UsageError
from ..report.host import describe_host
from ..report.schema import Accuracy, BenchResult, EngineResult
from ..runtime.host import resolve_threads
from ..runtime.inputs import generate_inputs, typical_sizes
from ..targets import usable_cpus
from ._client import Peer, engine_command
from ._load import LoadMeter
from ._protocol import PAUSE_S, LoadRequest, split_cases
from .sources import PeerModels, check_reference
from .statistics import compare, percentiles_ms, relative_l2

T = TypeVar("T")
TURN_MS = 250.0  # a turn is long enough that clock granularity and wake-up do not show
MOST_RUNS = 20
OURS = "halo_tvm"


@dataclass(frozen=True)
class PeerKind:
    """A name `--vs` knows: the worker module, the form of model it reads, its options."""

    module: str
    form: str
    options: Mapping[str, object] = field(default_factory=dict)


PEERS: dict[str, PeerKind] = {
    "onnxruntime": PeerKind("onnxruntime", "onnx"),
    "onnxruntime-plain": PeerKind("onnxruntime", "onnx-plain"),
    "torch": PeerKind("torch", "weights", {"compile": False}),
    "torch-compile": PeerKind("torch", "weights", {"compile": True}),
}


@dataclass(frozen=True)
class Contestant:
    """An engine ready to start; `failure` says why it cannot be."""

    name: str
    command: Sequence[str]
    request: LoadRequest | None
    failure: str | None = None


def benchmark(config: BenchConfig) -> BenchResult:
    """Time `config.artifact` and every engine of `config.vs`.

    Raises `PeerFailed` (exit code 5) when the artifact itself cannot run, or when every peer asked for is
    not installed; other failures of peers are part of the result.
    """
    for name in config.vs:
        if name not in PEERS and not _is_artifact(name):
            raise UnknownName("engine", name, PEERS, "(or give another artifact, NAME.halo, of the same inputs)")
    manifest = read_manifest(config.artifact)
    engines = [name for name in config.vs if name in PEERS]
    if engines or config.reference is not None:
        check_reference(manifest.source, config.reference)
    spec = manifest.functions["main"]
    threads = resolve_threads(config.threads, usable_cpus())
    inputs = timed_inputs(spec, config.shape, config.seed, typical_sizes(manifest))
    with tempfile.TemporaryDirectory(prefix="halo-bench-") as folder:
        directory = Path(folder)
        np.savez(directory / "inputs.npz", **inputs)
        contestants = [
            Contestant(
                OURS, engine_command("halo"), LoadRequest(config.artifact, threads, str(directory / "inputs.npz"))
            )
        ]
        models = PeerModels(manifest.source, config.reference, directory) if engines else None
        contestants += [_contestant(name, models, threads, directory / "inputs.npz") for name in config.vs]
        results, runs, other = take_turns(contestants, config.rounds, _reference(config.artifact, directory), directory)
    notes = (
        ("errors are against onnxruntime's own float32 outputs, not float64",)
        if manifest.source.get("kind") == "onnx"
        else ()
    )
    return _result(manifest.name, inputs, threads, config.rounds, runs, results, other, notes)


def timed_inputs(
    spec: FunctionSpec, shape: str | None, seed: int, typical: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Seeded inputs; `shape` gives sizes by dimension (`sequence=128`) or by input (`input_ids=1x128`), separated by
    commas. A dimension it does not give takes its `typical` size."""
    by_name = {tensor.name: tensor for tensor in spec.inputs}
    sizes: dict[str, int] = {}
    rest = []
    for part in filter(None, (p.strip() for p in (shape or "").split(","))):
        name, _, dims = part.partition("=")
        if name not in by_name or not re.fullmatch(r"\d+(x\d+)*", dims):
            rest.append(part)
            continue
        declared, given = by_name[name].shape, [int(d) for d in dims.split("x")]
        if len(given) != len(declared) or any(
            isinstance(d, int) and d != n for d, n in zip(declared, given, strict=False)
        ):
            text = "x".join(map(str, declared))
            raise UsageError(f"expected a shape like {text} for input {name}, found {dims}: correct --shape")
        sizes.update({d: n for d, n in zip(declared, given, strict=True) if isinstance(d, str)})
    sizes.update(parse_sizes(",".join(rest)))
    for dim, size in sizes.items():
        low, high = spec.ranges.get(dim, (size, size))
        if not low <= size <= high:
            raise UsageError(
                f"expected {dim} from {low} to {high}, found {size}: correct --shape, or compile for larger sizes"
            )
    return generate_inputs(spec, sizes={**(typical or {}), **sizes}, seed=seed)


def _is_artifact(name: str) -> bool:
    """Whether an entry of `--vs` is another artifact, for a comparison of before and after."""
    return Path(name).suffix == ".halo" and Path(name).is_dir()


def _contestant(name: str, models: PeerModels | None, threads: int, inputs: Path) -> Contestant:
    if name not in PEERS:
        return Contestant(Path(name).name, engine_command("halo"), LoadRequest(name, threads, str(inputs)))
    kind = PEERS[name]
    command = engine_command(kind.module)
    try:
        model = models.path(kind.form)
    except (PeerFailed, UnsupportedModel) as error:
        return Contestant(name, command, None, str(error))
    return Contestant(name, command, LoadRequest(str(model), threads, str(inputs), dict(kind.options)))


def _reference(artifact: str, directory: Path) -> Path | None:
    """The artifact's reference as an npz file the workers read, or None when it has none."""
    try:
        arrays = read_reference(artifact)
    except UsageError:
        return None
    path = directory / "reference.npz"
    np.savez(path, **arrays)
    return path


@dataclass
class _Running:
    """A started engine and what it has given so far."""

    contestant: Contestant
    peer: Peer | None = None
    version: str = ""
    load_s: float | None = None
    samples: list[float] = field(default_factory=list)
    peak_rss_mib: float | None = None
    accuracy: Accuracy | None = None
    failure: str | None = None
    missing: bool = False


def take_turns(
    contestants: Sequence[Contestant], rounds: int, reference: Path | None, directory: Path
) -> tuple[list[EngineResult], int, float | None]:
    """Start all engines, time them in turns, then ask memory and accuracy.

    Every round starts with the next engine (A B C, B C A, C A B, ...), so that none always follows the same other.

    Returns the results, the runs per turn, and how many cores other processes kept busy meanwhile.

    The first contestant is ours: its failure is raised. A peer that fails is reported and the others go on.
    """
    with ExitStack() as stack:
        running = [_start(contestant, stack) for contestant in contestants]
        _check(running)
        first = running[0].peer.ask("time", runs=2, pause_s=PAUSE_S)["milliseconds"]
        runs = max(1, min(MOST_RUNS, round(TURN_MS / max(first))))
        meter = LoadMeter([engine.peer.pid for engine in running if engine.peer is not None])
        for index in range(rounds):
            for engine in in_turn(running, index):
                _guard(engine, lambda e=engine: e.samples.append(_turn(e.peer, runs)))
        other = meter.other_cores()
        for engine in running:
            _guard(engine, lambda e=engine: _finish(e, reference, directory))
        _check(running)
    return [_engine_result(engine) for engine in running], runs, other


def in_turn(engines: Sequence[T], index: int) -> Sequence[T]:
    """`engines` in the order of round `index`: the first of one round is the last of the next."""
    start = index % len(engines)
    return [*engines[start:], *engines[:start]]


def _start(contestant: Contestant, stack: ExitStack) -> _Running:
    engine = _Running(contestant, failure=contestant.failure)
    if contestant.request is not None:
        engine.peer = stack.enter_context(Peer(contestant.name, contestant.command))

        def load() -> None:
            reply = engine.peer.ask("load", request=contestant.request.to_json())
            engine.version, engine.load_s = str(reply["version"]), float(reply["load_s"])

        _guard(engine, load)
    return engine


def _guard(engine: _Running, step) -> None:
    """Run one step of an engine that has not failed; a failure ends its part, its samples are void."""
    if engine.failure is not None:
        return
    try:
        step()
    except PeerFailed as error:
        engine.failure, engine.missing = str(error), error.missing
        engine.samples.clear()
        engine.peer.close()


def _turn(peer: Peer, runs: int) -> float:
    return float(np.median(peer.ask("time", runs=runs, pause_s=PAUSE_S)["milliseconds"]))


def _finish(engine: _Running, reference: Path | None, directory: Path) -> None:
    engine.peak_rss_mib = float(engine.peer.ask("memory")["peak_rss_mib"])
    if reference is None:
        return
    path = directory / f"outputs-{engine.contestant.name}.npz"
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
            absolute.append(float(np.abs(output.astype(np.float64) - value).max(initial=0.0)) if same else float("inf"))
    return Accuracy(len(expected), max(absolute), max(relative))


def _check(running: Sequence[_Running]) -> None:
    ours, *peers = running
    if ours.failure is not None:
        raise PeerFailed(ours.failure)
    if peers and all(peer.missing for peer in peers):
        raise PeerFailed("; ".join(str(peer.failure) for peer in peers), missing=True)


def _engine_result(engine: _Running) -> EngineResult:
    name = engine.contestant.name
    if engine.failure is not None:
        return EngineResult(name, version=engine.version, failure=engine.failure)
    p10, median, p90 = percentiles_ms(engine.samples)
    return EngineResult(
        engine=name, version=engine.version, samples_ms=tuple(engine.samples), median_ms=median, p10_ms=p10, p90_ms=p90,
        load_s=engine.load_s, peak_rss_mib=engine.peak_rss_mib, accuracy=engine.accuracy,
    )  # fmt: skip


def _result(
    name: str, inputs: Mapping[str, np.ndarray], threads: int, rounds: int, runs: int, engines: Sequence[EngineResult],
    other: float | None, notes: tuple[str, ...] = (),
) -> BenchResult:  # fmt: skip
    ours, *peers = engines
    return BenchResult(
        model=name,
        inputs={key: array.shape for key, array in inputs.items()},
        threads=threads,
        rounds=rounds,
        runs_per_turn=runs,
        pause_ms=PAUSE_S * 1e3,
        host=describe_host(),
        engines=tuple(engines),
        comparisons=tuple(compare(p.engine, ours.samples_ms, p.samples_ms) for p in peers if p.failure is None),
        notes=notes,
        other_cores=other,
    )
