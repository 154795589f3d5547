"""What every view shows: a result as titled tables of text. Views differ in dress only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .parts import TokenSpeed
from .profile_tables import profile_tables
from .report_tables import report_tables
from .schema import (
    BenchResult,
    Comparison,
    Host,
    ProfileResult,
    ReportResult,
    Result,
    SkippedResult,
    TokensResult,
    TuneResult,
    ValidateResult,
    from_json,
)
from .table import Table, number, quotient, threads
from .tune_tables import tuned_tables

# From here on, two-thread numbers of engines with spinning barriers drift apart by more than their spread says.
DISTURBED_CORES = 0.2


def tables_of(result: Result) -> list[Table]:
    """The sections of a result, the host last."""
    if isinstance(result, BenchResult):
        body = _bench(result)
    elif isinstance(result, TokensResult):
        body = _tokens(result)
    elif isinstance(result, SkippedResult):
        title = f"{result.model}, {_shapes(result.inputs)}, {threads(result.threads)}, {result.precision}: not measured"
        body = Table(title, notes=(result.reason,))
    elif isinstance(result, ValidateResult):
        body = _validate(result)
    elif isinstance(result, TuneResult):
        return [*tuned_tables(result), Table("Host", notes=host_lines(result.host))]
    else:
        return [*_several(result), Table("Host", notes=host_lines(result.host))]
    return [body, Table("Host", notes=host_lines(result.host))]


def host_lines(host: Host) -> tuple[str, ...]:
    return (
        f"{host.cpu}; {host.cores} cores, {host.memory_gib:g} GiB; "
        f"{', '.join(host.isa) or 'no known vector extension'}",
        f"Python {host.python}; " + ", ".join(f"{name} {version}" for name, version in host.packages.items()),
    )


def _shapes(inputs: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in inputs.items())


def ratio_text(comparison: Comparison | None) -> str:
    """A ratio as a reader meets it: a loss is called one."""
    if comparison is None:
        return "-"
    p = comparison.paired
    return f"{p.value:.2f} ({p.low:.2f} to {p.high:.2f}) {comparison.verdict}"


def _bench(result: BenchResult) -> Table:
    by_peer = {c.peer: c for c in result.comparisons}
    rows = []
    for engine in result.engines:
        if engine.failure is not None:
            continue
        error = f"{engine.accuracy.relative_l2:.1e}" if engine.accuracy else "-"
        spread = f"{number(engine.p10_ms)} to {number(engine.p90_ms)}"
        rows.append(
            (
                engine.engine,
                engine.precision,
                number(engine.median_ms),
                spread,
                ratio_text(by_peer.get(engine.engine)),
                error,
                number(engine.peak_rss_mib, ".0f"),
                number(engine.load_s, ".1f"),
            )
        )
    ours = result.engines[0].engine if result.engines else "ours"
    header = ("engine", "precision", "median ms", "p10 to p90", f"time / {ours}'s", "error", "peak RSS MiB", "load s")
    method = (
        f"{result.rounds} rounds in turns, {result.runs_per_turn} runs a turn after one untimed run and a pause of "
        f"{result.pause_ms:g} ms, each engine in its own process; ratios above 1: {ours} is faster "
        f"({_percent(result)} interval over paired rounds); error: relative L2 against the artifact's reference"
        + (f", made by {result.reference}" if result.reference else "")
    )
    failures = tuple(f"{e.engine} failed: {e.failure}" for e in result.engines if e.failure is not None)
    losses = tuple(_loss(ours, c) for c in result.comparisons if c.verdict == "slower")
    ran = tuple(f"{e.engine}: {e.note}" for e in result.engines if e.note)
    title = f"{result.model}, {_shapes(result.inputs)}, {threads(result.threads)}"
    disturbed = disturbance(result.other_cores)
    warnings = (*failures, *losses, *([disturbed] if disturbed else []))
    return Table(title, header, tuple(rows), (*warnings, method, *ran, *result.notes))


def _tokens(result: TokensResult) -> Table:
    header = ["threads", "test", "tokens/s"]
    header += ["of a read"] if any(test.read_seconds for test in result.tests) else []
    for peer in result.peers:
        header += [f"{peer.engine} {peer.numbers}", "its time / ours"]
    rows = tuple(_token_row(result, index) for index in range(len(result.tests)))
    quality = "" if result.divergence is None else f", {result.divergence:.2g} nats a token from its source"
    title = f"{result.model}, {result.precision}, {result.params_mib:.1f} MiB of weights{quality}"
    peers = tuple(
        f"{p.engine} failed: {p.failure}"
        if p.failure
        else f"{p.engine} {p.version}, {p.numbers}, {number(p.size_mib)} MiB"
        for p in result.peers
    )
    disturbed = disturbance(result.other_cores)
    return Table(title, tuple(header), rows, (*([disturbed] if disturbed else []), *peers, *result.notes))


def _token_row(result: TokensResult, index: int) -> tuple[str, ...]:
    """One test: ours, its share of a read, then every peer with the median of the rounds' ratios."""
    test = result.tests[index]
    cells = [str(test.threads), test.test, f"{test.tokens_per_s:.2f} ± {test.deviation:.2f}"]
    if any(other.read_seconds for other in result.tests):
        cells.append(f"{100 * read_share(test):.0f} %" if test.read_seconds else "-")
    for peer in result.peers:
        if peer.failure is not None:
            cells += ["-", "-"]
            continue
        ratios = [theirs / ours for theirs, ours in zip(peer.seconds[index], test.seconds, strict=True)]
        tokens = test.prompt + test.generated
        low, middle, high = (quantile(ratios, at) for at in (0.25, 0.5, 0.75))
        cells += [
            f"{tokens / quantile(peer.seconds[index], 0.5):.2f}",
            f"{number(middle)} ({number(low)} to {number(high)})",
        ]
    return tuple(cells)


def read_share(test: TokenSpeed) -> float:
    """The least time of reading as many bytes as a step reads, beside that of a step: medians of the same rounds."""
    return quantile(test.read_seconds, 0.5) / (quantile(test.seconds, 0.5) / test.generated)


def quantile(values: Sequence[float], at: float) -> float:
    """Between the two values that are next to it."""
    ordered = sorted(values)
    place = at * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def disturbance(other_cores: float | None) -> str:
    """A warning where other processes had a share in the numbers (engines suffer from that unequally), else nothing."""
    if other_cores is None or other_cores < DISTURBED_CORES:
        return ""
    busy = f"DISTURBED: other processes kept {other_cores:.1f} cores busy meanwhile"
    return f"{busy}; repeat on an idle machine before quoting"


def _percent(result: BenchResult) -> str:
    return f"{100 * result.comparisons[0].paired.confidence:.0f} %" if result.comparisons else "90 %"


def _loss(ours: str, comparison: Comparison) -> str:
    return f"{ours} is slower than {comparison.peer}: {number(quotient(1.0, comparison.paired.value))} times its time"


def _validate(result: ValidateResult) -> Table:
    rows = tuple(
        (
            f"{o.case} {o.output}",
            f"{o.max_abs:.2e}",
            f"{o.limit:.1e}",
            f"{o.relative_l2:.2e}",
            number(o.top1, ".4f"),
            o.limit_from or "-",
            "ok" if o.passed else "FAILED",
        )
        for o in result.outputs
    )
    failed = sum(not o.passed for o in result.outputs)
    verdict = "passed" if result.passed else f"FAILED in {failed} of {len(result.outputs)} outputs"
    header = ("case and output", "max abs", "limit", "relative L2", "top-1", "limit from", "verdict")
    return Table(f"{result.model} against {result.reference}: {verdict}", header, rows, result.notes)


def _several(result: ProfileResult | ReportResult) -> list[Table]:
    """The tables of a profile, or of a report with those of every result in it."""
    if isinstance(result, ProfileResult):
        return profile_tables(result)
    bench = [] if result.bench is None else tables_of(result.bench)[:-1]
    validations = {s.label: tables_of(s.validation)[0] for s in result.sides if s.validation is not None}
    others = [table for data in result.others for table in tables_of(from_json(data))[:-1]]
    return report_tables(result, bench, validations) + others
