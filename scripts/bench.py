#!/usr/bin/env python3
"""The benchmark suite: compile, time against peers, write JSON, regenerate the table of docs/benchmarks.md from it.

    python scripts/bench.py --cache build/bench --prepare           # compile all models, make the peers' files
    python scripts/bench.py --cache build/bench --quick --fresh     # 6 rounds at two threads: docs/benchmarks.json
    python scripts/bench.py --cache build/bench --resume            # what is not in the results yet
    python scripts/bench.py --only mlp --precision fp32 --threads 1 --rounds 40
    python scripts/bench.py --no-run --update-docs                # only the tables, from the JSON that is there
    python scripts/bench.py --cache build/bench --ablation          # docs/ablation.json and docs/ablation.md
    python scripts/bench.py --cache build/nets --nets build/nets    # ONNX files of a folder: docs/nets.json

Every number goes through `halo_tvm.benchmark`, as `halo-tvm bench` does: engines in their own
processes, in turns. Results are written after every row; a row that fails or is refused is kept with
its reason and the others go on. `_suite.py` has the rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import _checkout
import _net_files
import _page
from _suite import SUITE, Row, cells
from _suite_table import every_peer, plot, summary_table

from halo_tvm.config import PRECISIONS, BenchConfig, CompileConfig, parse_sizes
from halo_tvm.errors import HaloError, UsageError
from halo_tvm.peers.messages import without_folders
from halo_tvm.report import schema, terminal
from halo_tvm.report.host import describe_host
from halo_tvm.report.schema import BenchResult, SkippedResult
from halo_tvm.whole_file import write_whole

BEGIN, END = "<!-- benchmarks: written by scripts/bench.py -->", "<!-- end of benchmarks -->"
BEGIN_NETS, END_NETS = "<!-- nets: written by scripts/bench.py --nets -->", "<!-- end of nets -->"
RESULTS = _checkout.ROOT / "docs" / "benchmarks.json"
Measured = BenchResult | SkippedResult


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    failures = 0
    try:
        if options.run:
            with tempfile.TemporaryDirectory(prefix="halo-suite-") as temporary:
                options.cache = options.cache or Path(temporary)
                failures = _work_of(options)(options)
        if options.update_docs and options.nets:
            update_nets(options.page, read_results(options.json.with_name("nets.json")))
        elif options.update_docs:
            update_docs(options.page, read_results(options.json))
        if options.plot:
            plot(read_results(options.json), options.plot)
    except HaloError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 1 if failures else 0


def _work_of(options: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    if options.nets:
        return _run_nets
    return _run_ablation if options.ablation else _prepare if options.prepare else _run


def _parser() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="*", choices=sorted({row.model for row in SUITE}), help="models to run (default: all)")
    add("--precision", nargs="*", choices=PRECISIONS, help="default: those of each row")
    add("--threads", nargs="*", type=int, default=[n for n in (1, 2) if n <= cores])
    add("--vs", nargs="*", help="peers (default: those of the precision, see scripts/_suite.py)")
    add("--rounds", type=int, default=20)
    add("--quick", action="store_true", help="6 rounds, at two threads only")
    add("--minutes", type=float, default=float("inf"), help="begin no row after that many")
    add("--cache", type=Path, help="keep artifacts and peers' files there (default: a temporary directory)")
    add("--prepare", action="store_true", help="fill --cache: compile again, make peers' files")
    add("--resume", action="store_true", help="leave out what the results file has already")
    add("--fresh", action="store_true", help="forget what the results file has")
    add("--ablation", action="store_true", help="parts of the compiler left out, one at a time")
    add("--nets", type=Path, nargs="+", help="ONNX files, or folders of some, instead of the suite: docs/nets.json")
    add("--json", type=Path, default=RESULTS, help="results file")
    add("--plot", type=Path, help="write a bar chart there, e.g. docs/benchmarks.svg; needs matplotlib")
    add("--page", type=Path, default=_checkout.ROOT / "docs" / "benchmarks.md", help="where the table belongs")
    add("--update-docs", action="store_true", help="rewrite the tables of docs from the results file")
    add("--no-run", dest="run", action="store_false", help="measure nothing")
    return parser


def _cells(options: argparse.Namespace) -> list[tuple[Row, str, int]]:
    threads = (2,) if options.quick else tuple(options.threads)
    only = tuple(options.only) if options.only else None
    return list(cells(only, tuple(options.precision) if options.precision else None, threads))


def _artifact(options: argparse.Namespace, row: Row, precision: str) -> Path:
    return options.cache / "artifacts" / f"{row.model}-{precision}.halo"


def _compiled(options: argparse.Namespace, row: Row, precision: str) -> Path:
    import halo_tvm

    path = _artifact(options, row, precision)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        config = CompileConfig(model=row.model, output=str(path), precision=precision)
        print(halo_tvm.compile_model(config), flush=True)
    return path


def _config(options: argparse.Namespace, row: Row, precision: str, threads: int) -> BenchConfig:
    return BenchConfig(
        artifact=str(_compiled(options, row, precision)),
        shape=row.shape,
        threads=threads,
        vs=tuple(options.vs) if options.vs is not None else row.peers(precision),
        rounds=6 if options.quick else options.rounds,
        cache=str(options.cache / "peers"),
    )


def _prepare(options: argparse.Namespace) -> int:
    """Compile everything again, and run once each engine that has not run from this cache: it writes its files, fills
    its own caches and says how large its errors are. Measuring then waits for none of that."""
    import halo_tvm
    from halo_tvm.artifact import read_manifest
    from halo_tvm.peers.benchmark import unknown
    from halo_tvm.peers.sources import drop_stale

    failures, threads = 0, max(options.threads)
    options.rounds, options.quick = 1, False
    options.threads = [threads]
    todo = _cells(options)
    for path in {_artifact(options, row, precision) for row, precision, _ in todo}:
        shutil.rmtree(path, ignore_errors=True)
    for row, precision, _ in todo:

        def step() -> None:
            config = _config(options, row, precision, threads)
            drop_stale(options.cache / "peers", read_manifest(config.artifact).source)
            new = unknown(config)
            if new:
                result = halo_tvm.benchmark(dataclasses.replace(config, vs=new))
                print(terminal.render(result), flush=True)

        failures += _attempt(f"{row.model} {row.shape} {precision}", step)
    return failures


def _attempt(name: str, step: Callable[[], None]) -> int:
    """1 when the step fails with a reason, which is said."""
    try:
        step()
    except HaloError as error:
        print(f"{name} failed: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _run(options: argparse.Namespace) -> int:
    """Run the suite; results already in the file are replaced where measured again. Returns the number of failures."""
    import halo_tvm

    known = [] if options.fresh or not options.json.exists() else read_results(options.json)
    results = {_key(r): r for r in known}
    started, failures, cpu = time.monotonic(), 0, describe_host().cpu
    for row, precision, threads in _cells(options):
        key = (row.model, _sizes(row), threads, precision, cpu)
        if options.resume and any(_matches(key, r) for r in results.values()):
            continue
        if time.monotonic() - started > 60 * options.minutes:
            print("the time given is over; --resume goes on", file=sys.stderr)
            break
        try:
            result: Measured = halo_tvm.benchmark(_config(options, row, precision, threads))
        except HaloError as error:
            failures += 1
            shapes = {"sizes": _sizes(row)}
            result = SkippedResult(row.model, shapes, threads, precision, describe_host(), without_folders(str(error)))
        results = {k: r for k, r in results.items() if not _matches(key, r)} | {_key(result): result}
        print(terminal.render(result), flush=True)
        write_results(options.json, list(results.values()))
    return failures


def _run_ablation(options: argparse.Namespace) -> int:
    """Compile what is missing, time it unless --prepare, and write docs/ablation.json and its table."""
    import _ablation

    import halo_tvm

    failures, results = 0, []
    threads, rounds = max(options.threads), 6 if options.quick else options.rounds
    models = [m for m in _ablation.MODELS if not options.only or m in options.only]
    for model in models:
        for variant in (_ablation.WHOLE, *_ablation.VARIANTS):
            if options.prepare:
                shutil.rmtree(_ablation.artifact(options.cache, model, variant), ignore_errors=True)
            if not _ablation.artifact(options.cache, model, variant).exists():
                config = _ablation.compile_config(options.cache, model, variant)
                failures += _attempt(f"{model} {variant.name}", lambda c=config: print(halo_tvm.compile_model(c)))
    if options.prepare:
        return failures
    path = options.json.with_name("ablation.json")
    for model in models:
        result = halo_tvm.benchmark(_ablation.bench_config(options.cache, model, threads, rounds))
        print(terminal.render(result), flush=True)
        results.append(result)
        write_results(path, results)
    text = _ablation.table(options.cache, results)
    path.with_suffix(".md").write_text(f"# What each part is worth\n\n{text}", encoding="utf-8")
    print(text)
    return failures


def _run_nets(options: argparse.Namespace) -> int:
    """Compile and time ONNX files; the results file is theirs alone. Returns the number of failures.

    Results of other processors are kept.
    """
    threads, rounds = max(options.threads), 8 if options.quick else options.rounds
    options.cache.mkdir(parents=True, exist_ok=True)
    path = options.json.with_name("nets.json")
    results: list[Measured] = []
    others = [r for r in (read_results(path) if path.is_file() else ()) if r.host.cpu != describe_host().cpu]
    for name, file in _net_files.files_of(options.nets):
        results.append(_net_files.measure(name, file, options.cache, threads, rounds))
        print(terminal.render(results[-1]), flush=True)
        write_results(path, [*others, *results])
    return sum(isinstance(result, SkippedResult) for result in results)


def _sizes(row: Row) -> tuple[int, ...]:
    return tuple(parse_sizes(row.shape).values())


def _key(result: Measured) -> tuple[object, ...]:
    return result.model, tuple(sorted(result.inputs.items())), result.threads, result.precision, result.host.cpu


def _matches(key: tuple[object, ...], result: Measured) -> bool:
    """Whether `result` is of the row's model, sizes, threads and precision, and of that processor."""
    model, sizes, threads, precision, cpu = key
    first = tuple(next(iter(result.inputs.values()), ()))[: len(sizes)]
    found = (result.model, first, result.threads, result.precision, result.host.cpu)
    return found == (model, sizes, threads, precision, cpu)


def write_results(path: Path, results: Sequence[Measured]) -> None:
    """Write all results whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps([schema.to_json(r) for r in results], indent=1) + "\n").encode())


def read_results(path: Path) -> list[Measured]:
    """The results in `path`; `UsageError` when there are none."""
    if not path.is_file():
        raise UsageError(f"expected results at {path}, found none: run this script without --no-run first")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"expected JSON at {path}, found {error}: delete it and measure again") from None
    results = [schema.from_json(item) for item in data]
    return [r for r in results if isinstance(r, Measured)]


def update_docs(page: Path, results: Sequence[Measured]) -> None:
    """Replace what stands between the two marker comments of `page`, and benchmarks-peers.md beside it.

    `UsageError` when the markers are not there once each.
    """
    if not results:
        raise UsageError("expected at least one benchmark result, found none: run this script without --no-run first")
    _page.write_between(page, BEGIN, END, summary_table(results))
    peers = page.with_name("benchmarks-peers.md")
    peers.write_text(f"# Every engine of the benchmark suite\n\n{every_peer(results)}", encoding="utf-8")


def update_nets(page: Path, results: Sequence[Measured]) -> None:
    """Replace the tables of nets in `page`."""
    _page.write_between(page, BEGIN_NETS, END_NETS, _net_files.tables(results))


if __name__ == "__main__":
    raise SystemExit(main())
