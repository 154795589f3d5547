"""The last step of `compile`: run what was made, where it can run, and write the result into its manifest."""

from __future__ import annotations

from pathlib import Path

from ..artifact import cost_of, text_cost_of, update_manifest
from ..errors import ValidationFailed
from ..targets import Target, can_run_here
from .validation import validate_artifact


def accept(path: Path, target: Target, *, threads: int | None = None) -> str:
    """What validation came to, in words; its report becomes part of the manifest, a failed one too.

    Raises `ValidationFailed` when the artifact is wrong; it stays where it is, marked in its manifest.
    """
    runnable = can_run_here(target)
    if not runnable:
        return f"not done: {runnable.reason}"
    try:
        report = validate_artifact(path, threads=threads)
    except ValidationFailed as failure:
        if failure.report:
            update_manifest(path, validation=failure.report)
        raise
    update_manifest(path, validation=report)
    rows = report["outputs"]
    worst = max(row["max_abs_error"] for row in rows)
    text = f"passed: {len(rows)} outputs in {report['cases']} cases, largest error {worst:.3g}"
    costs = [] if report["tolerance"] is None else [cost_of(report)]
    costs += [text_cost_of(report)] if report["text"] else []
    return "; ".join([text, *costs])
