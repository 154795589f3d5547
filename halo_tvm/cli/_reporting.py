"""What a report is made of: manifests, an interleaved benchmark, profiles and validations, or results from files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..artifact import Manifest, read_manifest
from ..config import BenchConfig, ProfileConfig, ReportConfig, ValidateConfig
from ..errors import HaloError, UsageError, ValidationFailed
from ..report import schema
from ..report.host import describe_host
from ..report.schema import BenchResult, ProfileResult, ReportResult, Result, Side, ValidateResult

RESULT_LIMIT_BYTES = 64 << 20
_MIB = 1 << 20
_LONGEST = 100  # characters of what a pass did


def report_of(config: ReportConfig) -> ReportResult:
    """The report on what `config` names: artifacts are measured, results from files are taken as they are."""
    artifacts = [name for name in config.inputs if not name.endswith(".json")]
    results = [read_result(Path(name)) for name in config.inputs if name.endswith(".json")]
    if len(results) == 1 and not artifacts and isinstance(results[0], ReportResult):
        return results[0]
    manifests = [read_manifest(name) for name in artifacts]
    notes: list[str] = []
    sides = [side_of(_label(name, artifacts), manifest) for name, manifest in zip(artifacts, manifests, strict=True)]
    bench = None
    if config.time and artifacts:
        bench = _bench(config, artifacts, notes)
        sides = [
            dataclasses.replace(side, profile=profile, validation=_validation(config, name, m, notes))
            for side, profile, name, m in zip(sides, _profiles(config, artifacts), artifacts, manifests, strict=True)
        ]
    given_bench, given_sides, others = _placed(results, taken=bench is not None)
    sides += given_sides
    return ReportResult(
        title=_title(sides, results),
        host=describe_host() if artifacts or not results else results[0].host,
        sides=tuple(sides),
        bench=bench or given_bench,
        others=tuple(schema.to_json(result) for result in others),  # type: ignore[misc]
        notes=tuple(notes),
    )


def read_result(path: Path) -> Result:
    """A result written with --json; `UsageError` for anything else."""
    try:
        if path.stat().st_size > RESULT_LIMIT_BYTES:
            raise UsageError(f"a result of at most {RESULT_LIMIT_BYTES >> 20} MiB was expected, {path} is larger")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"a result written with --json was expected, but {path} cannot be read as one ({type(error).__name__}): "
            "name another file"
        ) from error
    return schema.from_json(data)


def side_of(label: str, manifest: Manifest) -> Side:
    """What a manifest says. Its reports are free in form: what is not there, or not as expected, is left out."""
    reports = manifest.reports
    build, optimise, scheduled = (_mapping(reports.get(name)) for name in ("build", "optimise", "schedule"))
    fuse = _mapping(optimise.get("fuse"))
    candidates = [c for c in _list(fuse.get("candidates")) if isinstance(c, Mapping)]
    saved = fuse.get("saved_bytes")
    return Side(
        label=label,
        model=manifest.name,
        target=", ".join(variant.target for variant in manifest.variants),
        precision=manifest.precision,
        versions=manifest.versions,
        params_mib=_mib(build.get("params_bytes")),
        library_mib=_mib(build.get("library_bytes")),
        planned_mib=_mib(build.get("planned_bytes")),
        unplanned_mib=_mib(build.get("unplanned_bytes")),
        operators=_counts(_mapping(reports.get("lift")).get("operators")),
        rules=_counts(scheduled.get("rules")),
        functions=len(_list(scheduled.get("functions"))),
        tuned=_count(scheduled.get("tuned")),
        fused=sum(c.get("taken") is True for c in candidates),
        fusion_candidates=len(candidates),
        saved_bytes=saved if isinstance(saved, int) else None,
        passes={str(name): _said(report) for name, report in optimise.items() if name != "fuse"},
    )


def _bench(config: ReportConfig, artifacts: Sequence[str], notes: list[str]) -> BenchResult | None:
    """Both artifacts in turns, each in a process of its own; a comparison that cannot be made is noted."""
    from ..peers.benchmark import benchmark

    *before, after = artifacts
    options = {"shape": config.shape, "rounds": config.rounds, "threads": config.threads, "seed": config.seed}
    try:
        result = benchmark(BenchConfig(artifact=after, vs=tuple(before), **options))
    except HaloError as error:
        notes.append(f"not timed: {error}")
        return None
    labels = [_label(name, artifacts) for name in (after, *before)]
    renamed = dict(zip([engine.engine for engine in result.engines], labels, strict=True))
    return dataclasses.replace(
        result,
        engines=tuple(dataclasses.replace(e, engine=renamed[e.engine]) for e in result.engines),
        comparisons=tuple(dataclasses.replace(c, peer=renamed.get(c.peer, c.peer)) for c in result.comparisons),
    )


def _profiles(config: ReportConfig, artifacts: Sequence[str]) -> list[ProfileResult]:
    """Where the time of each goes, under the same ceilings."""
    from ._profiling import profile

    options = {"shape": config.shape, "rounds": config.rounds, "threads": config.threads, "seed": config.seed}
    found: list[ProfileResult] = []
    for artifact in artifacts:
        ceilings = (found[0].peaks, found[0].notes[0]) if found else None
        result = profile(ProfileConfig(artifact=artifact, measure=config.measure, **options), ceilings)
        # This process's peak memory is that of all it has profiled; the benchmark's processes know each one's.
        found.append(dataclasses.replace(result, memory=None))
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


def _placed(results: Sequence[Result], taken: bool) -> tuple[BenchResult | None, list[Side], list[Result]]:
    """Results from files where a report has a place for them: the first benchmark, and profiles as sides."""
    bench, sides, others = None, [], []
    for result in results:
        if isinstance(result, BenchResult) and bench is None and not taken:
            bench = result
        elif isinstance(result, ProfileResult) and len(sides) < 2:
            label = result.model if all(side.label != result.model for side in sides) else f"{result.model} (2)"
            sides.append(Side(label=label, model=result.model, profile=result))
        else:
            others.append(result)
    return bench, sides, others


def _title(sides: Sequence[Side], results: Sequence[Result]) -> str:
    if len(sides) == 2:
        return f"{sides[0].label} before, {sides[1].label} after"
    return sides[0].label if sides else ", ".join(dict.fromkeys(getattr(r, "model", r.kind) for r in results))


def _label(name: str, artifacts: Sequence[str]) -> str:
    """The artifact's own name; with its folder where both are called the same."""
    path = Path(name).absolute()
    same = sum(Path(other).absolute().name == path.name for other in artifacts) > 1
    return f"{path.parent.name}/{path.name}" if same else path.name


def _said(report: object) -> str:
    """A pass's report in a line: totals of what it lists."""
    words = []
    for key, value in _mapping(report).items():
        if isinstance(value, Mapping) and value and all(isinstance(v, int) for v in value.values()):
            words.append(f"{key}: " + ", ".join(f"{count} {name}" for name, count in value.items()))
        elif isinstance(value, (Mapping, list)):
            words += [f"{len(value)} {key}"] if value else []
        else:
            words.append(f"{key} {value}")
    text = "; ".join(words) or "nothing to do"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _counts(value: object) -> dict[str, int]:
    return {str(k): v for k, v in _mapping(value).items() if isinstance(v, int)}


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mib(value: object) -> float | None:
    return value / _MIB if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []
