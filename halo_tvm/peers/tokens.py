"""How fast a language model reads a prompt (pp) and says tokens (tg), at several depths: llama-bench's tests.

A prompt test reads its tokens in one call and takes the logits of the last one; a generation test says its tokens one
by one, each with the choice of the likeliest. Both begin with `depth` tokens in the caches, which are read beforehand;
one run in front is not counted. Text is no part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..artifact import read_manifest, read_params_header
from ..config import BenchConfig
from ..report.host import describe_host
from ..report.parts import TokenSpeed
from ..report.schema import TokensResult
from ..runtime.host import resolve_threads
from ..runtime.language import LanguageModel
from ..targets import usable_cpus


def token_speeds(config: BenchConfig) -> TokensResult:
    """Time every prompt and generation of `config` at every depth and number of threads.

    Raises `UsageError` for an artifact without a language model, and for tests that its context has no room for.
    """
    prompts, generations = ([int(n) for n in given] for given in (config.n_prompt, config.n_gen))
    depths = [int(n) for n in config.n_depth] or [0]
    manifest = read_manifest(config.artifact)
    tests: list[TokenSpeed] = []
    for threads in [*map(int, config.n_threads)] if config.n_threads else [config.threads]:
        count = resolve_threads(threads, usable_cpus())
        context = max(depths) + max([*prompts, *generations])
        with LanguageModel.load(config.artifact, context=context, threads=count, verify=not tests) as model:
            for depth in depths:
                ids = _ids(model, depth + max([*prompts, 0]), config.seed)
                cases = [(n, 0, _reading(model, ids[depth : depth + n])) for n in prompts]
                cases += [(0, n, _saying(model, n)) for n in generations]
                for prompt, generated, run in cases:
                    seconds = _seconds(model, ids[:depth], run, config.repetitions)
                    tests.append(_speed(prompt, generated, depth, count, seconds))
    params = manifest.variants[0].params
    entries = read_params_header(Path(config.artifact) / params).values() if params else ()
    return TokensResult(
        model=manifest.name,
        precision=manifest.precision,
        params_mib=sum(entry.size_bytes for entry in entries) / (1 << 20),
        host=describe_host(),
        tests=tuple(tests),
        notes=(
            "pp: tokens read in one call; tg: tokens said one by one, the likeliest each; mean ± standard deviation",
        ),
    )


def _ids(model: LanguageModel, count: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(i) for i in rng.integers(0, model.vocabulary, count)]


def _reading(model: LanguageModel, ids: Sequence[int]) -> Callable[[], None]:
    def run() -> None:
        model.extend(ids)

    return run


def _saying(model: LanguageModel, count: int) -> Callable[[], None]:
    def run() -> None:
        token = 0
        for _ in range(count):
            token = int(model.decode(token).argmax())

    return run


def _seconds(
    model: LanguageModel, before: Sequence[int], run: Callable[[], None], repetitions: int
) -> tuple[float, ...]:
    """Of every repetition behind the first, all with the same tokens in the caches."""
    model.truncate(0)
    if before:
        model.extend(before)
    found = []
    for _ in range(1 + repetitions):
        model.truncate(len(before))
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return tuple(found[1:])


def _speed(prompt: int, generated: int, depth: int, threads: int, seconds: tuple[float, ...]) -> TokenSpeed:
    rates = np.array([(prompt + generated) / s for s in seconds])
    deviation = float(rates.std(ddof=1)) if len(rates) > 1 else 0.0
    return TokenSpeed(prompt, generated, depth, threads, float(rates.mean()), deviation, seconds)
