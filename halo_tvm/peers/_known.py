"""Errors of engines against the reference, kept from one measurement to the next: they do not change."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from ..report.schema import Accuracy, EngineResult
from ..whole_file import write_whole
from .engines import PEERS


class Known:
    """What `directory` knows, by engine and version. A file that cannot be read is measured again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "accuracy.json"
        self._found: dict[str, dict[str, Accuracy]] = {}
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            self._found = {
                engine: {version: Accuracy(**values) for version, values in by_version.items()}
                for engine, by_version in data.items()
            }
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            pass  # absent, or not what `learn` writes

    def of(self, engine: str) -> dict[str, Accuracy]:
        return self._found.get(engine, {})

    def learn(self, results: Sequence[EngineResult]) -> None:
        """Keep what `results` say of peers; the file is written whole or not at all."""
        for result in results:
            if result.engine in PEERS and result.accuracy is not None:
                self._found.setdefault(result.engine, {})[result.version] = result.accuracy
        text = json.dumps({e: {v: dataclasses.asdict(a) for v, a in known.items()} for e, known in self._found.items()})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, text.encode())
