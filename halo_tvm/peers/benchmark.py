"""An artifact timed against other engines: every engine in its own process, in turns, on the same inputs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..array_files import write_npz
from ..artifact import FunctionSpec, is_computed, read_manifest, read_reference
from ..config import BenchConfig, parse_sizes
from ..errors import HaloError, MissingPackage, PeerFailed, UnknownName, UnsupportedModel, UsageError
from ..report.host import describe_host
from ..report.schema import BenchResult, EngineResult
from ..runtime.host import resolve_threads
from ..runtime.inputs import generate_inputs, typical_sizes
from ..runtime.reference_engine import engine_of
from ..targets import usable_cpus
from ._known import Known
from ._turns import Contestant, accuracy, take_turns
from .client import engine_command
from .engines import PEERS, PeerKind
from .protocol import PAUSE_S, LoadRequest
from .sources import PeerModels, cache_key, check_reference
from .statistics import compare

__all__ = [
    "Contestant",
    "PEERS",
    "PeerKind",
    "accuracy",
    "benchmark",
    "take_turns",
    "timed_inputs",
    "unknown",
]

OURS = "halo_tvm"


def benchmark(config: BenchConfig) -> BenchResult:
    """Time `config.artifact` and every engine of `config.vs`.

    Raises `PeerFailed` (exit code 5) when the artifact itself cannot run, or when every peer asked for is
    not installed; other failures of peers are part of the result.
    """
    peers = _once(config.vs)
    for name in peers:
        if name not in PEERS and not _is_artifact(name):
            raise UnknownName("engine", name, PEERS, "(or give another artifact of the same inputs)")
    manifest = read_manifest(config.artifact)
    engines = [name for name in peers if name in PEERS]
    if engines or config.reference is not None:
        check_reference(manifest.source, config.reference)
    spec = manifest.functions["main"]
    threads = resolve_threads(config.threads, usable_cpus())
    inputs = timed_inputs(spec, config.shape, config.seed, typical_sizes(manifest))
    with tempfile.TemporaryDirectory(prefix="halo-bench-") as folder:
        directory = Path(folder)
        with (directory / "inputs.npz").open("wb") as file:
            write_npz(file, inputs)  # np.savez has parameters of its own, and names of inputs are any
        kept = Path(config.cache) / cache_key(manifest.source) if config.cache and engines else directory
        known = Known(kept)
        ours = LoadRequest(config.artifact, threads, str(directory / "inputs.npz"))
        contestants = [Contestant(OURS, engine_command("halo"), ours, precision=manifest.precision)]
        models = PeerModels(manifest.source, config.reference, kept) if engines else None
        labels = _labels(peers)
        contestants += [
            _contestant(name, labels[name], models, known, threads, directory / "inputs.npz") for name in peers
        ]
        results, runs, other = take_turns(contestants, config.rounds, _reference(config.artifact, directory), directory)
        known.learn(results)
    return _result(manifest.name, inputs, threads, config.rounds, runs, results, other, engine_of(manifest))


def timed_inputs(
    spec: FunctionSpec, shape: str | None, seed: int, typical: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Seeded inputs; `shape` gives sizes by dimension (`sequence=128`) or by input (`input_ids=1x128`), separated by
    commas. A dimension it does not give takes its `typical` size."""
    by_name = {tensor.name: tensor for tensor in spec.inputs}
    sizes: dict[str, int] = {}
    asked: dict[str, tuple[int, ...]] = {}
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
        sizes.update({d: n for d, n in zip(declared, given, strict=True) if isinstance(d, str) and not is_computed(d)})
        asked[name] = tuple(given)
    sizes.update(parse_sizes(",".join(rest)))
    for dim, size in sizes.items():
        low, high = spec.ranges.get(dim, (size, size))
        if not low <= size <= high:
            raise UsageError(
                f"expected {dim} from {low} to {high}, found {size}: correct --shape, or compile for larger sizes"
            )
    inputs = generate_inputs(spec, sizes={**(typical or {}), **sizes}, seed=seed)
    for name, given in asked.items():
        if inputs[name].shape != given:  # a size that is computed of others
            declared, text = by_name[name].shape, "x".join(map(str, inputs[name].shape))
            raise UsageError(
                f"expected {text} for input {name}, whose sizes {', '.join(filter(is_computed, map(str, declared)))} "
                f"follow from others, found {'x'.join(map(str, given))}: correct --shape"
            )
    return inputs


def _is_artifact(name: str) -> bool:
    """Whether an entry of `--vs` is another artifact, for a comparison of before and after."""
    return (Path(name) / "manifest.json").is_file()


def _once(names: Sequence[str]) -> tuple[str, ...]:
    """Every engine and artifact once, an artifact as it was spelt first."""
    found: dict[str | Path, str] = {}
    for name in names:
        found.setdefault(name if name in PEERS else Path(name).resolve(), name)
    return tuple(found.values())


def _labels(names: Sequence[str]) -> dict[str, str]:
    """Names in the result: an artifact's own, with as many of its folders as tell it from the others."""
    paths = {name: Path(name).absolute().parts for name in names}

    def label(parts: tuple[str, ...]) -> str:
        others = [other for other in paths.values() if other != parts]
        shortest = next(n for n in range(1, len(parts) + 1) if all(other[-n:] != parts[-n:] for other in others))
        return "/".join(parts[-shortest:])

    return {name: name if name in PEERS else label(parts) for name, parts in paths.items()}


def unknown(config: BenchConfig) -> tuple[str, ...]:
    """The engines of `config.vs` whose errors `config.cache` does not know: those that never ran from there."""
    known = Known(Path(str(config.cache)) / cache_key(read_manifest(config.artifact).source))
    return tuple(name for name in config.vs if name in PEERS and not known.of(name))


def _contestant(
    name: str, label: str, models: PeerModels | None, known: Known, threads: int, inputs: Path
) -> Contestant:
    if name not in PEERS:
        precision = read_manifest(name).precision
        request = LoadRequest(name, threads, str(inputs))
        return Contestant(label, engine_command("halo"), request, precision=precision)
    kind = PEERS[name]
    command = engine_command(kind.module)
    model = _model(models, kind.form)
    if isinstance(model, HaloError):
        missing = isinstance(model, MissingPackage)
        return Contestant(name, command, None, str(model), missing, precision=kind.precision)
    request = LoadRequest(str(model), threads, str(inputs), dict(kind.options))
    return Contestant(name, command, request, precision=kind.precision, known=known.of(name))


def _model(models: PeerModels, form: str) -> Path | HaloError:
    """What an engine reads, or why it cannot be made."""
    try:
        return models.path(form)
    except (PeerFailed, UnsupportedModel, MissingPackage) as error:
        return error


def _reference(artifact: str, directory: Path) -> Path | None:
    """The artifact's reference as an npz file the workers read, or None when it has none."""
    try:
        arrays = read_reference(artifact)
    except UsageError:
        return None
    path = directory / "reference.npz"
    np.savez(path, **arrays)
    return path


def _result(
    name: str,
    inputs: Mapping[str, np.ndarray],
    threads: int,
    rounds: int,
    runs: int,
    engines: Sequence[EngineResult],
    other: float | None,
    reference: str,
) -> BenchResult:
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
        other_cores=other,
        precision=ours.precision,
        reference=reference,
    )
