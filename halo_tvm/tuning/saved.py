"""JSON files beside a tuning log that are replaced as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..whole_file import write_whole


def write_json(path: Path, body: Mapping[str, object]) -> None:
    """Write `body`: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(body, separators=(",", ":"), allow_nan=False).encode())
