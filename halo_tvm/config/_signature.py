"""`--signature`: which function of a model's file."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError


def with_signature(model: str, signature: str | None) -> str:
    """`MODEL:NAME` as an importer takes it; `UsageError` for a file of a format without signatures."""
    if not signature:
        return model
    if Path(model).is_file() and Path(model).suffix != ".tflite":
        raise UsageError(
            f"--signature belongs to a TFLite file or a SavedModel directory, but {model} is neither: leave it out"
        )
    return f"{model}:{signature}"
