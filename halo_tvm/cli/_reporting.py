"""What a report is made of: manifests, an interleaved benchmark, profiles and validations, or results from files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..artifact import Manifest, read_manifest
from ..codec import Unfit, parse_file
from ..config import BenchConfig, ProfileConfig, ReportConfig, ValidateConfig
from ..errors import HaloError, UsageError, ValidationFailed
from ..phase_reports import FusionReport, Reports, read, to_plain
from ..report import schema
from ..report.host import describe_host
from ..report.schema import BenchResult, ProfileResult, ReportResult, Result, Side, ValidateResult
from ._show import mib

RESULT_LIMIT_BYTES = 64 << 20
_MOST_SIDES = 2  # before and after
_LONGEST = 100  # characters of what a pass did


def report_of(config: ReportConfig) -> ReportResult:
    """The report on what `config` names: artifacts are measured, results from files are taken as they are.

    Sides are artifacts and profiles in the order in which they are named; `UsageError` for more than two.
    """
    inputs = [read_result(Path(n)) if n.endswith(".json") else read_manifest(n) for n in config.inputs]
    if len(inputs) == 1 and isinstance(inputs[0], ReportResult):
        return inputs[0]
    named = [(n, i) for n, i in zip(config.inputs, inputs, strict=True) if isinstance(i, (Manifest, ProfileResult))]
    _check(inputs, [name for name, _ in named])
    labels = _labels(named)
    artifacts = {label: name for label, (name, found) in zip(labels, named) if isinstance(found, Manifest)}
    notes: list[str] = []
    bench = _bench(config, artifacts, notes) if config.time and artifacts else None
    profiles = _profiles(config, artifacts) if config.time and artifacts else {}
    sides = []
    for label, (name, found) in zip(labels, named):
        if isinstance(found, ProfileResult):
            sides.append(Side(label=label, model=found.model, profile=found))
            continue
        validation = _validation(config, name, found, notes) if config.time else None
        side = side_of(label, found)
        sides.append(dataclasses.replace(side, profile=profiles.get(label), validation=validation))
    given = [i for i in inputs if not isinstance(i, (Manifest, ProfileResult))]
    if bench is None:
        bench = next((result for result in given if isinstance(result, BenchResult)), None)
    return ReportResult(
        title=_title(sides, given),
        host=describe_host() if artifacts else inputs[0].host,
        sides=tuple(sides),
        bench=bench,
        others=tuple(schema.to_json(result) for result in given if result is not bench),
        notes=tuple(notes),
    )


def _check(inputs: Sequence[Manifest | Result], sides: Sequence[str]) -> None:
    """`UsageError` for inputs that make no report."""
    if any(isinstance(found, ReportResult) for found in inputs):
        raise UsageError("a report is rendered alone, but was named beside other inputs: name what it was made of")
    if len(sides) > _MOST_SIDES:
        raise UsageError(
            f"artifacts and profiles are laid side by side, at most {_MOST_SIDES}, before and after, but {len(sides)} "
            f"were named: {', '.join(Path(name).name for name in sides)}"
        )


def read_result(path: Path) -> Result:
    """A result written with --json; `UsageError` for anything else."""
    try:
        data = parse_file(path, RESULT_LIMIT_BYTES)
    except (OSError, Unfit) as error:
        raise UsageError(
            f"a result written with --json was expected, but {path} cannot be read as one "
            f"({error.strerror if isinstance(error, OSError) else error}): name another file"
        ) from error
    return schema.from_json(data)


def side_of(label: str, manifest: Manifest) -> Side:
    """What a manifest says."""
    reports = read(Reports, manifest.reports)
    build, schedule = reports.build, reports.schedule
    fuse = reports.optimise.fuse or FusionReport()
    return Side(
        label=label,
        model=manifest.name,
        target=", ".join(variant.target for variant in manifest.variants),
        precision=manifest.precision,
        versions=manifest.versions,
        params_mib=mib(build.params_bytes),
        library_mib=mib(build.library_bytes),
        planned_mib=mib(build.planned_bytes),
        unplanned_mib=mib(build.unplanned_bytes),
        operators=reports.lift.operators,
        rules=schedule.rules,
        functions=len(schedule.functions),
        tuned=schedule.tuned,
        fused=sum(candidate.taken for candidate in fuse.candidates),
        fusion_candidates=len(fuse.candidates),
        saved_bytes=fuse.saved_bytes,
        passes={name: _said(report) for name, report in to_plain(reports.optimise).items() if name != "fuse"},
    )


def _bench(config: ReportConfig, artifacts: Mapping[str, str], notes: list[str]) -> BenchResult | None:
    """The artifacts (by label) in turns, each in a process of its own; a comparison that cannot be made is noted."""
    from ..peers.benchmark import benchmark

    labels = list(artifacts)[::-1]  # the benchmark's own engine first: after
    after, *before = (artifacts[label] for label in labels)
    options = {"shape": config.shape, "rounds": config.rounds, "threads": config.threads, "seed": config.seed}
    try:
        result = benchmark(BenchConfig(artifact=after, vs=tuple(before), **options))
    except HaloError as error:
        notes.append(f"not timed: {error}")
        return None
    renamed = dict(zip([engine.engine for engine in result.engines], labels, strict=True))
    return dataclasses.replace(
        result,
        engines=tuple(dataclasses.replace(e, engine=renamed[e.engine]) for e in result.engines),
        comparisons=tuple(dataclasses.replace(c, peer=renamed.get(c.peer, c.peer)) for c in result.comparisons),
    )


def _profiles(config: ReportConfig, artifacts: Mapping[str, str]) -> dict[str, ProfileResult]:
    """Where the time of each artifact goes, by label, under the same ceilings."""
    from ._profiling import profile

    options = {"shape": config.shape, "rounds": config.rounds, "threads": config.threads, "seed": config.seed}
    found: dict[str, ProfileResult] = {}
    ceilings = None
    for label, artifact in artifacts.items():
        result = profile(ProfileConfig(artifact=artifact, measure=config.measure, **options), ceilings)
        # This process's peak memory is that of all it has profiled; the benchmark's processes know each one's.
        found[label] = dataclasses.replace(result, memory=None)
        ceilings = (result.peaks, result.notes[0])
    return found


def _validation(config: ReportConfig, artifact: str, manifest: Manifest, notes: list[str]) -> ValidateResult | None:
    """The artifact against its stored reference."""
    from ..runtime.validation import validate_artifact
    from .validate import result_of

    try:
        report = validate_artifact(artifact, threads=config.threads)
    except ValidationFailed as error:
        if error.report is None:
            notes.append(f"{manifest.name} not validated: {error}")
            return None
        report = error.report
    except UsageError as error:  # it has no reference
        notes.append(f"{manifest.name} not validated: {error}")
        return None
    return result_of(report, manifest, ValidateConfig(artifact=artifact))


def _title(sides: Sequence[Side], results: Sequence[Result]) -> str:
    if len(sides) == 2:
        return f"{sides[0].label} before, {sides[1].label} after"
    return sides[0].label if sides else ", ".join(dict.fromkeys(getattr(r, "model", r.kind) for r in results))


def _labels(named: Sequence[tuple[str, Manifest | ProfileResult]]) -> list[str]:
    """A label of its own for each side: an artifact's name, with its folder where two are called the same, or the
    model of a profile."""
    paths = [Path(name).absolute() for name, _ in named]
    labels: list[str] = []
    for path, (_, found) in zip(paths, named):
        label = path.name if isinstance(found, Manifest) else found.model
        if isinstance(found, Manifest) and sum(other.name == path.name for other in paths) > 1:
            label = f"{path.parent.name}/{path.name}"
        labels.append(f"{label} (2)" if label in labels else label)
    return labels


def _said(report: Mapping[str, object]) -> str:
    """A pass's report in a line: totals of what it lists."""
    words = []
    for key, value in report.items():
        if isinstance(value, Mapping) and value and all(isinstance(v, int) for v in value.values()):
            words.append(f"{key}: " + ", ".join(f"{count} {name}" for name, count in value.items()))
        elif isinstance(value, (Mapping, list)):
            words += [f"{len(value)} {key}"] if value else []
        else:
            words.append(f"{key} {value}")
    text = "; ".join(words) or "nothing to do"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
