"""Compare an artifact's outputs with its reference; exit code 3 when they differ by more than the tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..config import ValidateConfig
from ..errors import ValidationFailed
from ._show import check_writable, print_result

if TYPE_CHECKING:
    from ..artifact import Manifest
    from ..report.schema import ValidateResult

CONFIG = ValidateConfig


def run(config: ValidateConfig) -> int:
    """Compare, and print one row per output and case."""
    from ..artifact import read_manifest
    from ..original import reference_of
    from ..runtime.validation import validate_artifact

    check_writable(config.json, config.markdown)
    manifest = read_manifest(config.artifact)
    reference = reference_of(config.artifact, config.reference, config.seed, config.text)
    failure = None
    try:
        report = validate_artifact(config.artifact, reference=reference, threads=config.threads)
    except ValidationFailed as error:
        if error.report is None:
            raise
        report, failure = error.report, error
    print_result(result_of(report, manifest, config), json_file=config.json, markdown_file=config.markdown)
    if failure:
        raise failure
    return 0


def result_of(report: Mapping[str, object], manifest: Manifest, config: ValidateConfig) -> ValidateResult:
    """What `validate_artifact` reports, as a result of the schema."""
    from ..artifact import cost_of, text_cost_of
    from ..original import is_archive
    from ..report.host import describe_host
    from ..report.schema import OutputError, ValidateResult
    from ..runtime.reference_engine import engine_of

    outputs = tuple(
        OutputError(
            case=f"case{o['case']}",
            output=o["output"],
            max_abs=float(o["max_abs_error"]),
            relative_l2=float(o["relative_l2"]),
            limit=float(o["bound"]),
            passed=o["passed"],
            limit_from=o["bound_from"],
            top1=o["top1"],
        )
        for o in report["outputs"]
    )
    made_by = "the arrays given" if config.reference and is_archive(config.reference) else engine_of(manifest)
    notes = [] if report["tolerance"] is None else [cost_of(report)]
    notes += [text_cost_of(report)] if report["text"] else []
    notes += [f"{name} is drawn at random: computed, not compared" for name in report["drawn"]]
    return ValidateResult(manifest.name, made_by, describe_host(), outputs, bool(report["passed"]), tuple(notes))
