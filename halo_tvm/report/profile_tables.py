"""A profile as tables: one row per kernel, operator or layer, slowest first, and what the whole run held."""

from __future__ import annotations

from dataclasses import dataclass

from ..text import shortened
from .profiles import total_work
from .schema import Peaks, ProfileResult, Work
from .table import Table, number, percent, quotient, threads

_SHOWN_INPUTS = 4  # a decoder has one per layer and cache
UNKNOWN_LAYER = "(layer not known)"


@dataclass(frozen=True)
class Row:
    """Calls that belong together."""

    name: str
    detail: str
    calls: int
    us: float
    work: Work


def profile_tables(result: ProfileResult) -> list[Table]:
    """The table by `result.by`, and the run with its memory and ceilings."""
    rows = rows_of(result, result.by)
    detail = {"kernel": "rule", "operator": "kernels", "layer": "slowest operator"}[result.by]
    header = (
        result.by,
        detail,
        "calls",
        "us per call",
        "us",
        "share",
        "MB",
        "MFLOP",
        "GB/s",
        "GFLOP/s",
        "of the roof",
        "bound by",
    )
    shapes = [f"{name} {'x'.join(map(str, shape))}" for name, shape in result.inputs.items()]
    more = [f"{len(shapes) - _SHOWN_INPUTS} more inputs"] if len(shapes) > _SHOWN_INPUTS else []
    inputs = ", ".join(shapes[:_SHOWN_INPUTS] + more)
    title = (
        f"{result.model}, {inputs}, {threads(result.threads)}: "
        f"{result.total_us / 1000:.2f} ms in {len(result.kernels)} kernels, median of {result.rounds} runs"
    )
    body = Table(title, header, tuple(_cells(row, result.total_us) for row in rows), _legend(rows))
    return [body, Table("Run", notes=(*run_lines(result), *result.notes))]


def rows_of(result: ProfileResult, by: str) -> list[Row]:
    """What takes part in a run, grouped, slowest first."""
    if by == "kernel" or not result.calls:
        rows = [Row(k.kernel, k.rule or "-", k.calls, k.total_us, k.work) for k in result.kernels]
        return sorted(rows, key=lambda row: -row.us)
    groups: dict[str, list] = {}
    for call in result.calls:
        name = call.operator if by == "operator" else call.layer or UNKNOWN_LAYER
        groups.setdefault(name, []).append(call)
    rows = []
    for name, group in groups.items():
        times: dict[str, float] = {}
        for call in group:
            times[call.operator] = times.get(call.operator, 0.0) + call.us
        detail = str(len({c.kernel for c in group})) if by == "operator" else max(times, key=lambda op: times[op])
        rows.append(Row(name, detail, len(group), sum(c.us for c in group), total_work(c.work for c in group)))
    # Layers stand in the order of the run, everything else by time.
    return rows if by == "layer" else sorted(rows, key=lambda row: -row.us)


def run_lines(result: ProfileResult) -> tuple[str, ...]:
    """The whole run beside its kernels, its memory, and the ceilings it was held against."""
    lines = []
    if result.run_us is not None:
        over = result.run_us - result.total_us
        text = f"whole run {result.run_us / 1e3:.3f} ms, kernels {result.total_us / 1e3:.3f} ms, "
        text += (
            f"launches, virtual machine and clock {over:.0f} us ({percent(over, result.run_us)})"
            if over >= 0
            else "the difference is within the spread of the runs"
        )
        builtin = "" if result.builtin_us is None else f"; its own functions, observed: {result.builtin_us:.0f} us"
        lines.append(text + builtin)
    if result.memory is not None:
        m = result.memory
        lines.append(
            f"memory: peak RSS {_mib(m.peak_rss_mib)} after one run, activations planned {_mib(m.planned_mib)} "
            f"at the largest declared sizes, params {_mib(m.params_mib)}"
        )
    if result.peaks is not None:
        lines.append(_peaks(result.peaks))
        limits = [k.work.limit_us for k in result.kernels]
        if limits and all(limit is not None for limit in limits):
            least = sum(limits)  # type: ignore[arg-type]
            lines.append(
                f"under these ceilings the kernels need at least {least / 1e3:.3f} ms: "
                f"{percent(least, result.total_us, '.0f')} of the roof in all"
            )
    return tuple(lines)


def work_cells(work: Work, us: float) -> tuple[str, ...]:
    """MB, MFLOP, GB/s, GFLOP/s, fraction of the roof and what sets it."""
    flops = None if work.flops is None or work.integer_ops is None else work.flops + work.integer_ops
    return (
        number(None if work.bytes is None else work.bytes / 1e6, ".3f"),
        number(None if flops is None else flops / 1e6, ".2f"),
        number(quotient(work.bytes, 1e3 * us), ".1f"),
        number(quotient(flops, 1e3 * us), ".1f"),
        percent(work.limit_us, us, ".0f"),
        work.bound or "-",
    )


def _cells(row: Row, total_us: float) -> tuple[str, ...]:
    each = number(quotient(row.us, row.calls), ".1f")
    return (
        shortened(row.name),  # fused functions are named after all that they compute: 400 characters in quantised nets
        row.detail,
        str(row.calls),
        each,
        f"{row.us:.1f}",
        percent(row.us, total_us),
        *work_cells(row.work, row.us),
    )


def _legend(rows: list[Row]) -> tuple[str, ...]:
    lines = []
    if any(row.work.flops is not None for row in rows):
        lines.append("MB and MFLOP: the least a kernel can move and do; every operand once, integer products included")
    if any(row.work.limit_us is not None for row in rows):
        lines.append(
            "of the roof: the least time under the host's ceilings, the larger of arithmetic and traffic, per time "
            "taken; weights come from memory where they do not fit the last cache, all else from the cache that "
            "holds it"
        )
    if not lines and rows:
        lines.append("bytes and flops unknown: the artifact was compiled by a release that did not say: compile again")
    return tuple(lines)


def _peaks(peaks: Peaks) -> str:
    bf16 = "" if peaks.bf16_gflops is None else f", bf16 {peaks.bf16_gflops:.0f} GFLOP/s"
    int8 = "" if peaks.int8_gops is None else f", int8 {peaks.int8_gops:.0f} GOP/s"
    return (
        f"ceilings with {threads(peaks.threads)}: {peaks.fma_gflops:.0f} GFLOP/s "
        f"fp32{bf16}{int8}, read L2 {peaks.l2_gbps:.0f}, L3 {peaks.l3_gbps:.0f}, memory {peaks.dram_gbps:.0f} GB/s"
    )


def _mib(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} MiB"
