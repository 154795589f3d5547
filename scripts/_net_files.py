"""ONNX files as rows of the benchmark: compiled as they are, timed against the engines that read them."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from _suite_table import error_text, measured_on

from halo_tvm.config import BenchConfig, CompileConfig
from halo_tvm.errors import HaloError, UsageError
from halo_tvm.peers.messages import without_folders
from halo_tvm.report import markdown
from halo_tvm.report.host import describe_host
from halo_tvm.report.schema import BenchResult, Comparison, EngineResult, SkippedResult
from halo_tvm.report.tables import disturbance

Result = BenchResult | SkippedResult
_NOTABLE = 1e-3  # a relative error of a peer that readers should know of
PEERS = ("onnxruntime", "openvino")
HEADER = ("net", "ours, ms", "onnxruntime / ours", "openvino / ours", "error of ours")


def files_of(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Name and file of every net: files as they are given, those of a folder in their order.

    A net is called as its file, or as its folder where the file says no more than "model".
    """
    for path in paths:
        found = sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
        if not found or not all(file.is_file() for file in found):
            raise UsageError(f"expected an ONNX file or a folder of some, found {path.name}: correct --nets")
        for file in found:
            yield (file.parent.name if file.stem == "model" else file.stem), file


def measure(name: str, file: Path, folder: Path, threads: int, rounds: int) -> Result:
    """Compile `file` into `folder` and time it. Example inputs lie beside it: `inputs_0.npz`, or `.npz` of its name."""
    import halo_tvm

    artifact = folder / f"{name}.halo"
    examples = [p for p in (file.with_name("inputs_0.npz"), file.with_suffix(".npz")) if p.is_file()]
    try:
        if not artifact.exists():
            config = CompileConfig(model=str(file), output=str(artifact), inputs=str(examples[0]) if examples else None)
            print(halo_tvm.compile_model(config), flush=True)
        bench = BenchConfig(artifact=str(artifact), threads=threads, vs=PEERS, rounds=rounds, reference=str(file))
        return dataclasses.replace(halo_tvm.benchmark(bench), model=name)
    except HaloError as error:
        shutil.rmtree(artifact, ignore_errors=True)
        print(f"{name} failed: {error}", file=sys.stderr, flush=True)
        return SkippedResult(name, {}, threads, "fp32", describe_host(), without_folders(str(error)))


def tables(results: Sequence[Result]) -> str:
    """A table for each processor, under its name."""
    parts = []
    for cpu, isa in dict.fromkeys((r.host.cpu, r.host.isa) for r in results):
        level = "AVX-512" if any(name.startswith("avx512") for name in isa) else "no AVX-512"
        here = sorted((r for r in results if r.host.cpu == cpu), key=lambda r: r.model)
        parts.append(f"### {cpu}, {level}\n\n{table(here)}")
    return "\n".join(parts)


def table(results: Sequence[Result]) -> str:
    """A line for each net, and the geometric mean against the faster peer of each."""
    rows, ratios = [], []
    for result in results:
        if isinstance(result, SkippedResult):
            rows.append((result.model, "-", "-", "-", result.reason[:120]))
            continue
        ours, *others = result.engines
        compared = {c.peer: c for c in result.comparisons}
        if compared:
            ratios.append(min(c.paired.value for c in compared.values()))
        peers = (_peer(engine, compared.get(engine.engine)) for engine in others)
        rows.append((result.model, _milliseconds(ours), *peers, error_text(ours)))
    measured = [r for r in results if isinstance(r, BenchResult)]
    if not measured:
        return markdown.table(HEADER, rows)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    threads = " or ".join(map(str, sorted({r.threads for r in measured})))
    lines = [
        f"{measured_on(measured)}, on {threads} threads, each engine in its own process. Ratios above 1: ours is "
        "faster. Errors are relative, against onnxruntime's outputs; those of a peer are said where they exceed 1e-3.",
        f"Geometric mean against the faster peer of each net: **{mean:.2f}** ({len(ratios)} nets).",
        disturbance(max((r.other_cores or 0.0) for r in measured)),
    ]
    return markdown.table(HEADER, rows) + "".join(f"\n{line}\n" for line in lines if line)


def _peer(engine: EngineResult, comparison: Comparison | None) -> str:
    if comparison is None:
        return "failed"
    error = engine.accuracy.relative_l2 if engine.accuracy else 0.0
    return f"{comparison.paired.value:.2f}" + (f" (error {error:.0e})" if error > _NOTABLE else "")


def _milliseconds(engine: EngineResult) -> str:
    return "failed" if engine.median_ms is None else f"{engine.median_ms:.3g}"
