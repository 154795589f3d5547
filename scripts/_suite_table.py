"""The table of the docs and the README's picture, from results alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from _suite import MEMORY, Goal, goals_of

from halo_tvm.report import markdown
from halo_tvm.report.schema import BenchResult, Comparison, EngineResult, SkippedResult
from halo_tvm.report.tables import disturbance, ratio_text

Result = BenchResult | SkippedResult
# An engine whose output has little to do with the reference wins nothing by being fast.
WRONG = 0.3
HEADER = (
    "model",
    "precision",
    "threads",
    "halo_tvm ms",
    "best peer of the goal",
    "peer ms",
    "peer time / ours",
    "goal",
    "",
)


def summary_table(results: Sequence[Result]) -> str:
    """One line per model, precision, thread count and goal, against the best of the goal's peers; losses are said.

    A table for each host, in the order in which they come.
    """
    tables = []
    for _, of in _by_host(results):
        rows = [line for result in of for line in _lines(result)]
        tables.append(markdown.table(HEADER, rows) + "".join(_notes([r for r in of if isinstance(r, BenchResult)])))
    return "\n".join(tables) if tables else "Nothing was measured.\n"


def _by_host(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    for cpu in dict.fromkeys(result.host.cpu for result in results):
        yield cpu, [result for result in results if result.host.cpu == cpu]


def every_peer(results: Sequence[Result]) -> str:
    """One line per result and peer, with precisions, errors and memory; a table for each host."""
    measured = list(_by_host([r for r in results if isinstance(r, BenchResult)]))
    tables = [_every_peer(of) for _, of in measured]
    if len(measured) > 1:
        tables = [f"## {cpu}\n\n{table}" for (cpu, _), table in zip(measured, tables, strict=True)]
    return "\n".join(tables)


def _every_peer(results: Sequence[BenchResult]) -> str:
    header = ("model", "threads", "engine", "precision", "ms", "peer time / ours", "error", "peak RSS MiB", "")
    rows = []
    for result in results:
        ratios = {c.peer: c for c in result.comparisons}
        for engine in result.engines:
            memory = "-" if engine.peak_rss_mib is None else f"{engine.peak_rss_mib:.0f}"
            rows.append(
                (
                    _name(result),
                    str(result.threads),
                    engine.engine,
                    engine.precision,
                    _time(engine),
                    ratio_text(ratios.get(engine.engine)),
                    error_text(engine),
                    memory,
                    (engine.failure or engine.note)[:120],
                )
            )
    return markdown.table(header, rows)


def _lines(result: BenchResult | SkippedResult) -> Iterator[tuple[str, ...]]:
    if isinstance(result, SkippedResult):
        yield (_name(result), result.precision, str(result.threads), "-", "-", "-", "-", "-", result.reason)
        return
    goals = goals_of(result.model, result.inputs, result.precision, result.threads)
    for goal in goals or (None,):
        yield _line(result, goal)
    if result.model == MEMORY[0] and result.precision == "fp32" and result.threads == 2:
        yield from _memory(result)


def _line(result: BenchResult, goal: Goal | None) -> tuple[str, ...]:
    ours = result.engines[0]
    start = (_name(result), result.precision, str(result.threads), _time(ours))
    best = best_of(result, goal.against if goal else None)
    if best is None:
        return (*start, "-", "-", "-", f"{goal.ratio:.2f}" if goal else "-", "no such peer ran")
    comparison = next(c for c in result.comparisons if c.peer == best.engine)
    precision = "" if best.precision == result.precision else f" ({best.precision})"
    target, reached = "-", "" if comparison.verdict != "slower" else "slower"
    if goal is not None:
        target = f"{goal.ratio:.2f}"
        reached = "; ".join([_reached(comparison, goal.ratio), *_beside(result, goal, best)])
    return (*start, f"{best.engine}{precision}", _time(best), ratio_text(comparison), target, reached)


def _reached(comparison: Comparison, ratio: float) -> str:
    if comparison.paired.value < ratio:
        return f"not reached, {comparison.verdict}"
    return "reached" if comparison.paired.low >= ratio else "reached, within noise"


def _beside(result: BenchResult, goal: Goal, best: EngineResult) -> Iterator[str]:
    """What the goal's best peer does not say: a faster one that no goal of the row names, and named ones that did not
    run."""
    goals = goals_of(result.model, result.inputs, result.precision, result.threads)
    named = {name for of in goals for name in of.against}
    fastest = best_of(result, tuple(e.engine for e in result.engines if e.engine not in named))
    ran = {c.peer: c.paired.value for c in result.comparisons}
    if fastest is not None and ran[fastest.engine] < ran[best.engine]:
        yield f"{fastest.engine}, in no goal, took {_time(fastest)} ms ({ran[fastest.engine]:.2f})"
    missing = [name for name in goal.against if name not in ran]
    if missing:
        yield f"without {', '.join(missing)}"


def _memory(result: BenchResult) -> Iterator[tuple[str, ...]]:
    ours, eager = result.engines[0], next((e for e in result.engines if e.engine == "torch"), None)
    if eager is None or ours.peak_rss_mib is None or eager.peak_rss_mib is None:
        return
    ratio = eager.peak_rss_mib / ours.peak_rss_mib
    yield (
        f"{_name(result)}, peak memory",
        "fp32",
        "2",
        f"{ours.peak_rss_mib:.0f} MiB",
        "torch",
        f"{eager.peak_rss_mib:.0f} MiB",
        f"{ratio:.2f}",
        f"{MEMORY[1]:.2f}",
        "reached" if ratio >= MEMORY[1] else "not reached",
    )


def best_of(result: BenchResult, against: tuple[str, ...] | None) -> EngineResult | None:
    """The peer with the least ratio, of those named, that ran and computes what it should."""
    ran = {c.peer: c.paired.value for c in result.comparisons}
    peers = [
        e
        for e in result.engines[1:]
        if e.engine in ran
        and (against is None or e.engine in against)
        and (e.accuracy is None or e.accuracy.relative_l2 < WRONG)
    ]
    return min(peers, key=lambda e: ran[e.engine]) if peers else None


def _notes(results: Sequence[BenchResult]) -> Iterator[str]:
    if not results:
        return
    yield f"\n{measured_on(results)}, "
    yield "each engine in its own process; ratio with its 90 % interval, against the peer with the least one that the "
    yield "goal names (without one, of all); reached: the whole interval is at or above the goal. "
    yield "[Every peer, its precision and its error](benchmarks-peers.md).\n"
    disturbed = disturbance(max((r.other_cores or 0.0) for r in results))
    if disturbed:
        yield f"\n**{disturbed}**\n"


def measured_on(results: Sequence[BenchResult]) -> str:
    """Host, versions, rounds and runs, as the beginning of a sentence."""
    host = results[0].host
    names = ("apache-tvm", "onnxruntime", "torch", "openvino", "jax")
    versions = ", ".join(f"{name} {host.packages[name]}" for name in names if name in host.packages)
    rounds, runs = sorted({r.rounds for r in results}), sorted({r.runs_per_turn for r in results})
    median = f"Median of {' or '.join(map(str, rounds))} rounds"
    turns = " to ".join(map(str, dict.fromkeys((runs[0], runs[-1]))))
    return f"Measured on {host.cpu}, {host.cores} cores; {versions}. {median} in turns of {turns} runs"


def _name(result: BenchResult | SkippedResult) -> str:
    return f"{result.model} {'x'.join(map(str, next(iter(result.inputs.values()), ())))}"


def _time(engine: EngineResult) -> str:
    return "failed" if engine.median_ms is None else f"{engine.median_ms:.1f}"


def error_text(engine: EngineResult) -> str:
    """The relative error of an engine."""
    return f"{engine.accuracy.relative_l2:.0e}" if engine.accuracy else "-"


def plot(results: Sequence[Result], path: Path) -> None:
    """A bar per result at its host's most threads: the best peer's time / ours, with its 90 % interval.

    Its grey reads on light and on dark. `matplotlib` is needed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [r for r in results if isinstance(r, BenchResult)]
    most = {cpu: max(r.threads for r in of) for cpu, of in _by_host(measured)}
    bars = []
    for result in measured:
        best = best_of(result, None)
        if best is not None and result.threads == most[result.host.cpu]:
            ratio = next(c.paired for c in result.comparisons if c.peer == best.engine)
            bars.append((f"{_name(result)}, {result.precision} / {best.engine}", ratio))
    grey = "#808080"
    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.26 * len(bars)))
    for place, (_, ratio) in enumerate(bars):
        spread = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        color = "#3b82f6" if ratio.value >= 1 else "#ef4444"
        axes.barh(place, ratio.value - 1, left=1, xerr=spread, color=color, ecolor=grey, height=0.7)
    axes.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=8, color=grey)
    axes.axvline(1.0, color=grey, linewidth=1)
    axes.invert_yaxis()
    axes.tick_params(colors=grey)
    label = "time of the fastest peer / time of halo_tvm (right of 1: halo_tvm is faster)"
    axes.set_xlabel(label, color=grey, fontsize=8)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.tight_layout()
    with matplotlib.rc_context({"svg.hashsalt": "halo_tvm"}):  # equal results, equal bytes
        figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)
