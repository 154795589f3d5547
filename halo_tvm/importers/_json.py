"""Small JSON files of a model's directory, read with care: they are as foreign as its weights."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import UnsupportedModel

_CONFIG_LIMIT = 4 << 20  # a config.json or an index of a real model is far smaller


def read_json(file: Path, what: str, most: int = _CONFIG_LIMIT) -> dict[str, object]:
    """The object in `file` of at most so many bytes; `UnsupportedModel`, which calls it `what`, for anything else."""
    if not file.is_file():
        raise UnsupportedModel(
            f"expected {what}, found no {file.name} in {file.parent.name}: give the model's own directory"
        )
    if file.stat().st_size > most:
        raise UnsupportedModel(
            f"expected {what} of at most {most >> 20} MiB, found {file.stat().st_size} bytes: not such a file"
        )
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as reason:
        raise UnsupportedModel(f"expected {what} to be JSON, found {reason}: download the model again") from reason
    if not isinstance(value, dict):
        raise UnsupportedModel(
            f"expected {what} to hold a JSON object, found {type(value).__name__}: download the model again"
        )
    return value
