"""Errors of engines against the reference, kept from one measurement to the next: they do not change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..codec import Unfit, parse_file, plain, read
from ..report.schema import Accuracy, EngineResult
from ..whole_file import write_whole
from .engines import PEERS

_MOST_BYTES = 1 << 20


class Known:
    """What `directory` knows, by engine and version. A file that cannot be read is measured again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "accuracy.json"
        self._found: dict[str, dict[str, Accuracy]] = {}
        try:
            self._found = read(dict[str, dict[str, Accuracy]], parse_file(self._path, _MOST_BYTES))
        except (FileNotFoundError, Unfit):
            pass  # absent, or not what `learn` writes

    def of(self, engine: str) -> dict[str, Accuracy]:
        return self._found.get(engine, {})

    def learn(self, results: Sequence[EngineResult]) -> None:
        """Keep what `results` say of peers; the file is written whole or not at all."""
        for result in results:
            if result.engine in PEERS and result.accuracy is not None:
                self._found.setdefault(result.engine, {})[result.version] = result.accuracy
        text = json.dumps(plain(self._found))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, text.encode())
