"""Merging logs: lines that verify, once each, to the files they belong to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from .record import DECIDING, BadLine, Record
from .store import FILE, TRIALS, append_new
from .verify import UNFINISHED, examined

_NAMED = 20
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,100}")


@dataclass
class MergeReport:
    """What a merge came to: lines added by file name, those the log had already, and those refused by class."""

    directory: Path
    added: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def to_plain(self) -> dict[str, object]:
        return {
            "directory": str(self.directory),
            "added": dict(self.added),
            "duplicates": self.duplicates,
            "refused": dict(self.refused),
            "named": list(self.named),
        }

    def refuse(self, kind: str, reason: str) -> None:
        self.refused[kind] += 1
        if len(self.named) < _NAMED:
            self.named.append(reason)


def merge(directory: Path, files: Sequence[Path]) -> MergeReport:
    """Add the lines of `files` to the log in `directory`; lines it has are not added twice.

    Lines stay as they are, byte for byte. Raises `UsageError` when a file cannot be read, or not one of its
    lines is a record.
    """
    report = MergeReport(directory)
    for path in files:
        waiting: dict[Path, list[bytes]] = {}
        seen = good = unfinished = 0
        for line, found in examined(path):
            seen += 1
            try:
                if isinstance(found, BadLine):
                    raise found
                waiting.setdefault(_place_of(directory, found), []).append(line.data)
                good += 1
            except BadLine as bad:
                unfinished += bad.kind == UNFINISHED
                report.refuse(bad.kind, f"{path}:{line.number}: {bad.kind}: {bad}")
        if not good and seen > unfinished:
            raise UsageError(
                f"a file of a tuning log was expected, but none of the {seen} lines of {str(path)!r} is a record "
                f"(the first: {report.named[-min(seen, _NAMED)]}): leave it out"
            )
        _add(report, waiting)
    return report


def _add(report: MergeReport, waiting: dict[Path, list[bytes]]) -> None:
    for place, texts in waiting.items():
        new = append_new(place, texts)
        report.added[place.name] += new
        report.duplicates += len(texts) - new


def _place_of(directory: Path, record: Record) -> Path:
    """The file `record` belongs to. The names come from the line, so they are checked before they become a path."""
    key = f"{record.target.get('kind')}-{record.target.get('machine')}-{record.isa}"
    if not _KEY.fullmatch(key) or key != record.target.get("key"):
        raise BadLine("malformed", f"the target key {str(record.target.get('key'))[:100]!r} is none")
    return directory / key / (FILE if record.outcome in DECIDING else TRIALS)
