#!/usr/bin/env python3
"""The benchmark suite: compile, time against peers, write JSON, regenerate the README's table from it.

    python scripts/bench.py                                   # everything, 1 and 2 threads: docs/benchmarks.json
    python scripts/bench.py --only mlp --threads 1 --rounds 40
    python scripts/bench.py --no-run --update-readme          # only the table, from the JSON that is there

Every number goes through `halo_tvm.benchmark`, as `halo-tvm bench` does: engines in their own
processes, in turns. An entry that fails is reported and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from halo_tvm.config import BenchConfig, CompileConfig  # noqa: E402 - the checkout comes first
from halo_tvm.errors import HaloError, UsageError  # noqa: E402
from halo_tvm.report import markdown, schema, terminal  # noqa: E402
from halo_tvm.report._tables import DISTURBED_CORES  # noqa: E402
from halo_tvm.report.schema import BenchResult, Comparison, EngineResult  # noqa: E402

BEGIN, END = "<!-- benchmarks: written by scripts/bench.py -->", "<!-- end of benchmarks -->"
RESULTS = ROOT / "docs" / "benchmarks.json"


@dataclass(frozen=True)
class Entry:
    """One line of the suite: a model and the sizes it is timed at."""

    name: str
    model: str
    shape: str


SUITE = (
    Entry("gpt2 prefill", "gpt2", "batch=1,sequence=128"),
    Entry("bert-base", "bert-base", "batch=1,sequence=128"),
    Entry("mlp", "mlp", "batch=256"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        failures = _run(options) if options.run else 0
        if options.update_readme:
            update_readme(options.readme, read_results(options.json))
    except HaloError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=[e.model for e in SUITE], help="models to run (default: all)")
    parser.add_argument("--threads", nargs="*", type=int, default=[n for n in (1, 2) if n <= cores])
    parser.add_argument("--vs", nargs="*", default=["onnxruntime"], help="peers, e.g. onnxruntime torch torch-compile")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--artifacts", type=Path, help="keep and reuse compiled artifacts there (default: a temporary directory)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="results file")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--update-readme", action="store_true", help="rewrite the README's table from the results file")
    parser.add_argument("--no-run", dest="run", action="store_false", help="measure nothing")
    return parser


def _run(options: argparse.Namespace) -> int:
    """Run the suite; results already in the file are replaced where measured again. Returns the number of failures."""
    import halo_tvm

    results = {_key(r): r for r in read_results(options.json)} if options.json.exists() else {}
    failures = 0
    with tempfile.TemporaryDirectory(prefix="halo-suite-") as temporary:
        folder = options.artifacts or Path(temporary)
        for entry in (e for e in SUITE if not options.only or e.model in options.only):
            artifact = folder / f"{entry.model}.halo"
            try:
                if not artifact.exists():
                    halo_tvm.compile_model(CompileConfig(model=entry.model, output=str(artifact)))
                for threads in options.threads:
                    config = BenchConfig(
                        artifact=str(artifact), vs=tuple(options.vs), shape=entry.shape, rounds=options.rounds, threads=threads
                    )
                    result = halo_tvm.benchmark(config)
                    results[_key(result)] = result
                    print(terminal.render(result), flush=True)
                    write_results(options.json, list(results.values()))
            except HaloError as error:
                failures += 1
                print(f"{entry.name} failed: {error}", file=sys.stderr)
    return failures


def _key(result: BenchResult) -> tuple[object, ...]:
    return result.model, tuple(sorted(result.inputs.items())), result.threads


def write_results(path: Path, results: Sequence[BenchResult]) -> None:
    """Write all results whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps([schema.to_json(r) for r in results], indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_results(path: Path) -> list[BenchResult]:
    """The results in `path`; `UsageError` when there are none."""
    if not path.is_file():
        raise UsageError(f"expected results at {path}, found none: run this script without --no-run first")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"expected JSON at {path}, found {error}: delete it and measure again") from None
    results = [schema.from_json(item) for item in data]
    return [r for r in results if isinstance(r, BenchResult)]


def readme_table(results: Sequence[BenchResult]) -> str:
    """One line per model, thread count and peer; a loss is written as one."""
    rows = []
    for result in results:
        ours, *peers = result.engines
        ratios = {c.peer: c for c in result.comparisons}
        sizes = "x".join(map(str, next(iter(result.inputs.values()))))
        for peer in peers:
            cells = (f"{result.model} {sizes}", str(result.threads), _time(ours), peer.engine, _time(peer))
            rows.append((*cells, _ratio(ratios.get(peer.engine)), f"{_error(ours)} / {_error(peer)}"))
    header = ("model", "threads", "halo_tvm ms", "peer", "peer ms", "peer time / ours", "error ours / peer")
    host = results[0].host
    versions = ", ".join(f"{name} {host.packages[name]}" for name in ("apache-tvm", "onnxruntime", "torch") if name in host.packages)
    where = f"\nMeasured on {host.cpu}, {host.cores} cores; {versions}. Median of rounds in turns, each engine in its own process; "
    busy = max((r.other_cores or 0.0) for r in results)
    disturbed = f" **Other processes kept up to {busy:.1f} cores busy meanwhile: repeat on an idle machine.**" if busy >= DISTURBED_CORES else ""
    return markdown.table(header, rows) + where + f"ratio with its 90 % interval; relative L2 error against float64.{disturbed}\n"


def _time(engine: EngineResult) -> str:
    return "failed" if engine.median_ms is None else f"{engine.median_ms:.1f}"


def _error(engine: EngineResult) -> str:
    return f"{engine.accuracy.relative_l2:.0e}" if engine.accuracy else "-"


def _ratio(comparison: Comparison | None) -> str:
    if comparison is None:
        return "-"
    interval = comparison.paired
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f}), {comparison.verdict}"


def update_readme(readme: Path, results: Sequence[BenchResult]) -> None:
    """Replace what stands between the two marker comments; `UsageError` when they are not there once each."""
    if not results:
        raise UsageError("expected at least one benchmark result, found none: run this script without --no-run first")
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UsageError(f"expected the lines {BEGIN!r} and {END!r} once each in {readme.name}, in this order: add them where the table belongs")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    readme.write_text(f"{head}{BEGIN}\n\n{readme_table(results)}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
