"""How fast a language model reads a prompt (pp) and says tokens (tg), at several depths: llama-bench's tests.

A prompt test reads its tokens in one call and takes the logits of the last one; a generation test says tokens one by
one, each with the choice of the likeliest. Both begin with `depth` tokens in the caches, which are read beforehand.
Every engine has a process of its own and does the same with the same tokens; they take turns, test by test and
repetition by repetition, behind a turn that is not counted. So does a read of as many bytes as a step reads: the
weights and what is in the caches. Text is no part of it.

An encoder-decoder reads a prompt with its encoder, and says tokens behind a text of `depth` tokens, at least one.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..artifact import Manifest, read_manifest, read_params_header
from ..config import BenchConfig
from ..errors import UnknownName, UsageError
from ..phase_reports import Reports, read
from ..report.host import describe_host
from ..report.parts import TokenPeer, TokenSpeed
from ..report.schema import TokensResult
from ..runtime.host import resolve_threads
from ..runtime.language import LanguageModel
from ..runtime.language.spec import READ
from ..targets import usable_cpus
from ._running import Running, check_installed
from .client import Peer, engine_command
from .load_meter import LoadMeter
from .messages import without_folders
from .order import in_turn
from .protocol import LoadRequest
from .sources import cache_key, check_reference
from .speakers import SPEAKERS, Speaking, speaker_of

_READS = 3  # a read is repeated so often: one alone pays for waking the threads


@dataclass(frozen=True)
class _Test:
    read: tuple[int, ...]
    say: tuple[int, ...]
    before: tuple[int, ...]
    threads: int


@dataclass(kw_only=True)
class _Running(Running):
    """An engine, its process for the present number of threads, and its seconds by test."""

    speaking: Speaking
    seconds: list[list[float]] = field(default_factory=list)


def token_speeds(config: BenchConfig) -> TokensResult:
    """Time every prompt and generation of `config` at every depth and number of threads, beside the engines of `vs`.

    Raises `UsageError` for an artifact without a language model, or with one that hears, and for tests that its context
    has no room for;
    `PeerFailed` when the artifact cannot run, or when no peer asked for is installed. Other failures are in the result.
    """
    manifest = read_manifest(config.artifact)
    for name in config.vs:
        if name not in SPEAKERS:
            raise UnknownName("engine that speaks", name, SPEAKERS)
    if config.vs:
        check_reference(manifest.source, config.reference)
    answers = READ[0] in manifest.functions
    sizes = [int(n) for n in (config.n_gen if answers else (*config.n_prompt, *config.n_gen))]
    longest = max([1, *sizes]) + max([0 if answers else int(n) for n in config.n_depth] or [0])
    with LanguageModel.load(config.artifact, context=longest, threads=1) as model:
        if model.hears:
            raise UsageError(
                f"expected a language model that reads tokens, found {manifest.name}, which hears: time its functions "
                "with --function"
            )
        vocabulary, cached = model.vocabulary, model.cache_bytes / model.context
    tests = _tests(config, vocabulary)
    step_bytes = _params_bytes(config.artifact, manifest, manifest.functions["decode"].params if answers else None)
    with tempfile.TemporaryDirectory(prefix="halo-bench-") as scratch:
        folder = Path(config.cache) / cache_key(manifest.source) if config.cache and config.vs else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        speaking = Speaking("halo_tvm", "speaking", manifest.precision, Path(config.artifact))
        ours = _Running(speaking=speaking, ours=True)
        others = (
            speaker_of(name, manifest.source, manifest.precision, config.reference, folder)
            for name in dict.fromkeys(config.vs)
        )
        peers = [_Running(speaking=other, failure=other.failure) for other in others]
        reads: list[list[float]] = []
        meter = LoadMeter()
        for threads in dict.fromkeys(test.threads for test in tests):
            of_these = [test for test in tests if test.threads == threads]
            bytes_read = [step_bytes + cached * (len(test.before) + len(test.say) / 2) for test in of_these]
            _race([ours, *peers], of_these, bytes_read, reads, config.repetitions, longest)
        other = meter.other_cores()
        files = [_mib(p.speaking.model) if p.speaking.model else None for p in peers]
    check_installed(peers)
    return TokensResult(
        model=manifest.name,
        precision=manifest.precision,
        params_mib=step_bytes / (1 << 20),
        host=describe_host(),
        tests=tuple(_speed(test, seconds, read) for test, seconds, read in zip(tests, ours.seconds, reads)),
        notes=(
            "pp: tokens read in one call; tg: tokens said one by one, each with the choice of the likeliest; ours mean "
            "± standard deviation, a peer's median; its time / ours: median of the rounds' ratios, their middle half",
            "of a read: the time of reading as many bytes as a step does (weights, caches) by that of a step",
        ),
        peers=tuple(_peer(peer, size) for peer, size in zip(peers, files)),
        other_cores=other,
        divergence=_divergence(manifest),
    )


def _tests(config: BenchConfig, vocabulary: int) -> list[_Test]:
    """Every test, with its tokens: the same ones at every number of threads."""
    prompts, generations = ([int(n) for n in given] for given in (config.n_prompt, config.n_gen))
    depths = [int(n) for n in config.n_depth] or [0]
    given = [*map(int, config.n_threads)] if config.n_threads else [config.threads]
    found = []
    for threads in given:
        count = resolve_threads(threads, usable_cpus())
        for depth in depths:
            rng = np.random.default_rng(config.seed)
            ids = tuple(int(i) for i in rng.integers(0, vocabulary, depth + max([*prompts, *generations])))
            before, behind = ids[:depth], ids[depth:]
            found += [_Test(behind[:n], (), before, count) for n in prompts]
            found += [_Test((), behind[:n], before, count) for n in generations]
    return found


def _mib(model: Path) -> float:
    """Of a file, or of all files in a folder."""
    files = model.iterdir() if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files) / (1 << 20)


def _params_bytes(artifact: str, manifest: Manifest, names: Sequence[str] | None) -> float:
    """What a step reads of the weights, of these or of all: of experts those that one token is sent to."""
    params, reports = manifest.variants[0].params, read(Reports, manifest.reports)
    shares = reports.optimise.shares
    entries = read_params_header(Path(artifact) / params) if params else {}
    return sum(
        entry.size_bytes * shares.get(name, 1.0) for name, entry in entries.items() if names is None or name in names
    )


def _race(
    engines: Sequence[_Running],
    tests: Sequence[_Test],
    step_bytes: Sequence[float],
    reads: list[list[float]],
    rounds: int,
    context: int,
) -> None:
    """All tests of one number of threads, every engine in turn; ours is the first one."""
    with ExitStack() as stack:
        for each in engines:
            each.attempt(functools.partial(_start, each, stack, tests[0].threads, context))
        memory = stack.enter_context(Peer("read", engine_command("memory_read")))
        for test, size in zip(tests, step_bytes):
            for each in engines:
                each.seconds.append([])
                each.attempt(functools.partial(_begin, each, test))
            memory.ask("load", threads=test.threads, size_bytes=int(size))
            found: list[float] = []
            for index in range(-1, rounds):
                for engine in in_turn((*engines, None), max(index, 0)):
                    if engine is None:
                        seconds = memory.ask("read", times=_READS)["seconds"]
                        found += [float(str(seconds))] if index >= 0 else []
                    else:
                        engine.attempt(functools.partial(_turn, engine, test, counts=index >= 0))
            reads.append(found)


def _start(engine: _Running, stack: ExitStack, threads: int, context: int) -> None:
    assert engine.speaking.model is not None, "an engine without a model has failed"
    request = LoadRequest(str(engine.speaking.model), threads, "", {"context": context})
    engine.load(stack, engine.speaking.name, engine_command(engine.speaking.module), request)


def _begin(engine: _Running, test: _Test) -> None:
    engine.peer.ask("begin", before=test.before)


def _turn(engine: _Running, test: _Test, *, counts: bool) -> None:
    seconds = engine.peer.ask("speak", read=test.read, say=test.say)["seconds"]
    if counts:
        engine.seconds[-1].append(float(str(seconds)))


def _speed(test: _Test, seconds: Sequence[float], read: Sequence[float]) -> TokenSpeed:
    rates = (len(test.read) + len(test.say)) / np.array(seconds)
    deviation = float(rates.std(ddof=1)) if len(rates) > 1 else 0.0
    said = tuple(read) if test.say else ()
    return TokenSpeed(
        len(test.read),
        len(test.say),
        len(test.before),
        test.threads,
        float(rates.mean()),
        deviation,
        tuple(seconds),
        said,
    )


def _peer(peer: _Running, size_mib: float | None) -> TokenPeer:
    failed = peer.failure is not None
    return TokenPeer(
        engine=peer.speaking.name,
        numbers=peer.speaking.numbers,
        size_mib=size_mib,
        version=peer.version,
        seconds=() if failed else tuple(map(tuple, peer.seconds)),
        failure=without_folders(str(peer.failure)) if failed else None,
        note=peer.note,
    )


def _divergence(manifest: Manifest) -> float | None:
    """Nats a token, as compiling has measured them on its passage."""
    text = (manifest.validation or {}).get("text")
    found = text.get("divergence") if isinstance(text, dict) else None
    return float(found) if isinstance(found, int | float) else None
