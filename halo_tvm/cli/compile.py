"""Compile a model into an artifact: library, parameters, manifest, reference; then validate it."""

from __future__ import annotations

from pathlib import Path

from ..config import CompileConfig
from ..errors import ValidationFailed
from ..targets import can_run_here, resolve

CONFIG = CompileConfig


def run(config: CompileConfig) -> int:
    """Compile, validate where this machine can run the result, and print what was made."""
    from ..compiler import compile_model

    result = compile_model(config)
    print(result)
    print(f"validation {_validation(config, Path(result.path))}")
    return 0


def _validation(config: CompileConfig, path: Path) -> str:
    """What validation came to; its report becomes part of the manifest, a failed one too."""
    from ..artifact import update_manifest
    from ..runtime.validation import validate_artifact

    runnable = can_run_here(resolve(config.target))
    if not config.validate or not runnable:
        return f"not done: {runnable.reason or '--no-validate'}"
    try:
        report = validate_artifact(path, threads=config.threads)
    except ValidationFailed as failure:
        if getattr(failure, "report", None):
            update_manifest(path, validation=failure.report)
        raise
    update_manifest(path, validation=report)
    worst = max(row["max_abs_error"] for row in report["outputs"])
    return f"passed: {len(report['outputs'])} outputs in {report['cases']} cases, largest error {worst:.3g}"
