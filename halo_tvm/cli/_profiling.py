"""From a trace of one run to what it says: operators, layers, work, and the least time the host could take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..artifact import Manifest
from ..artifact.formula import evaluate, sizes_of
from ..ceilings import Peaks
from ..config import ProfileConfig, parse_sizes
from ..errors import ArtifactCorrupt
from ..phase_reports import FunctionReport, Reports, read
from ..report.profiles import kernels_of, limited
from ..report.schema import CallTime, Memory, ProfileResult, Work
from ..runtime.tracing import Call, Trace
from ._peaks import peaks_of
from ._show import mib

_MAIN = "main"
_NUMBERED = re.compile(r"_e\d+$")  # as `entry_points.merged` writes it
_BLOCK = re.compile(r"^(.*?(?:^|[._/])\d+)(?:[._/]|$)")  # "h.0" of "h.0.attn.c_attn.weight"


def profile(config: ProfileConfig, ceilings: tuple[Peaks | None, str] | None = None) -> ProfileResult:
    """Where the time of the artifact's runs goes.

    `ceilings` are the host's, with how they were found; else they come from host.json, or are measured first.
    """
    from ..report.host import describe_host
    from ..runtime import load

    sizes = parse_sizes(config.shape)
    with load(config.artifact, threads=config.threads, function=config.function) as module:
        inputs = module.example_inputs(sizes=sizes, seed=config.seed)
        peaks, said = ceilings or peaks_of(module.threads, measure=config.measure)
        seen = module.trace(rounds=config.rounds, **inputs)
        threads, manifest, params = module.threads, module.manifest, module.spec.params
    calls = calls_of(seen, manifest, params, peaks, config.function)
    reports = KernelReports.of(manifest, config.function)
    rules = {call.kernel: reports.entry(call.kernel).rule for call in calls}
    return ProfileResult(
        model=manifest.name if config.function == _MAIN else f"{manifest.name}: {config.function}",
        inputs={name: array.shape for name, array in inputs.items()},
        threads=threads,
        rounds=config.rounds,
        total_us=sum(call.us for call in calls),
        host=describe_host(),
        kernels=kernels_of(calls, rules),
        notes=(said,),
        run_us=seen.run_us,
        builtin_us=sum(call.us for call in seen.calls if call.builtin),
        instrument_us=seen.instrument_us,
        memory=memory_of(seen, manifest, config.function),
        peaks=peaks,
        calls=calls,
        by=config.by,
    )


def calls_of(
    trace: Trace, manifest: Manifest, params: Sequence[str], peaks: Peaks | None, function: str
) -> tuple[CallTime, ...]:
    """The kernel calls of a run of `function` in order, with operator, layer and work."""
    reports = KernelReports.of(manifest, function)
    params_bytes = _reports(manifest, function).build.params_bytes or 0
    weights_far = peaks is not None and params_bytes > peaks.l3_bytes
    found, layer = [], ""
    for call in trace.calls:
        if call.builtin:
            continue
        entry = reports.entry(call.function)
        # A call without weights goes on with what the last one began: attention after its projections.
        layer = _layer_of(params[at] for at in call.weights if at is not None) or layer
        work = _work_of(call, entry.work, peaks, weights_far)
        operator = _operator_of(entry)
        found.append(CallTime(call.function, operator, layer, call.us, work))
    return tuple(found)


def memory_of(trace: Trace, manifest: Manifest, function: str) -> Memory:
    """What the process held and what the compiler planned."""
    build = _reports(manifest, function).build
    return Memory(trace.peak_rss_mib, mib(build.planned_bytes), mib(build.params_bytes))


@dataclass(frozen=True)
class KernelReports:
    """What the schedule reports say about kernels, by their names before the functions met in one library.

    There the first function that has a kernel of a name keeps the name, and main comes first; others are numbered.
    A kernel that several functions share is there once and may be in the report of any of them.
    """

    own: Mapping[str, FunctionReport]  # of the function that is profiled
    all: Mapping[str, FunctionReport]  # of main, of that function, of the others: the first that has a name

    @classmethod
    def of(cls, manifest: Manifest, function: str) -> KernelReports:
        first: dict[str, FunctionReport] = {}
        for name in (_MAIN, function, *manifest.reports.get("functions", {})):
            first = {**_entries(manifest, name), **first}
        return cls(_entries(manifest, function), first)

    def entry(self, kernel: str) -> FunctionReport:
        """The report of a kernel of the library."""
        stem = _NUMBERED.sub("", kernel)
        own = self.own.get(stem) if stem != kernel else None
        return own or self.all.get(kernel) or self.all.get(stem) or FunctionReport()


def _entries(manifest: Manifest, function: str) -> dict[str, FunctionReport]:
    return {entry.function: entry for entry in _reports(manifest, function).schedule.functions}


def _reports(manifest: Manifest, function: str) -> Reports:
    own = manifest.reports if function == _MAIN else manifest.reports.get("functions", {}).get(function, {})
    return read(Reports, own)


def _work_of(call: Call, work: Mapping[str, object], peaks: Peaks | None, weights_far: bool) -> Work:
    """What a call does, from the formulas of its function and the shapes it was given."""
    sizes = sizes_of(work.get("shapes"), call.arguments)
    moved = work.get("bytes")
    if sizes is None or not isinstance(moved, list) or len(moved) > len(call.weights) or work.get("flops") is None:
        return Work()
    try:
        flops, integers = (max(0, evaluate(work.get(name), sizes)) for name in ("flops", "integer_ops"))
        narrow = min(flops, max(0, evaluate(work.get("narrow_flops", 0), sizes)))
        parts = [max(0, evaluate(formula, sizes)) for formula in moved]
    except ArtifactCorrupt:
        return Work()  # of another release, or damaged: the times stand all the same
    weights = sum(size for size, at in zip(parts, call.weights, strict=False) if at is not None)
    counts = {"flops": flops, "narrow_flops": narrow, "integer_ops": integers}
    return limited(Work(**counts, bytes=sum(parts), weight_bytes=weights), peaks, weights_far)


def _operator_of(entry: FunctionReport) -> str:
    """The operator a function holds, else the kind of its rule."""
    return str(entry.work.get("operator") or entry.rule or "library")


def _layer_of(params: Iterable[str]) -> str:
    """The layer that the first numbered weight belongs to, else the first weight's own place; "" without weights."""
    names = [name.split("|")[0] for name in params]  # behind the bar is how a weight is packed
    for name in names:
        if match := _BLOCK.match(name):
            return match[1]
    return names[0].rpartition(".")[0] or names[0] if names else ""
