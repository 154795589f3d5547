"""Every line of a log's files, examined: what is whole, what is not, and where."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from .record import DECIDING, MEASURED, BadLine, Record, parse_line
from .store import FILE, TRIALS, Line, files_of, lines

UNFINISHED = "unfinished"  # the beginning of a line, which a killed writer leaves: nothing was lost that was committed
_BEGINNING, _END = '{"candidate_us":', '"}'
_HARMLESS = (UNFINISHED, "future_schema")
_NAMED = 20


@dataclass
class FileReport:
    """What the lines of one file are; `bad` counts those that cannot be used by class, `named` holds the first."""

    path: Path
    size_bytes: int = 0
    records: int = 0
    trials: int = 0
    failures: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> int:
        """Lines that hold less than was once written."""
        return sum(count for kind, count in self.bad.items() if kind not in _HARMLESS)

    def to_plain(self) -> dict[str, object]:
        return {
            "file": str(self.path),
            "bytes": self.size_bytes,
            "records": self.records,
            "trials": self.trials,
            "failures": self.failures,
            "bad": dict(self.bad),
            "named": list(self.named),
            "damaged": self.damaged,
        }

    def refuse(self, kind: str, reason: str) -> None:
        self.bad[kind] += 1
        if len(self.named) < _NAMED:
            self.named.append(f"{self.path}{reason}")


def verify_file(path: Path) -> FileReport:
    """Examine every line of `path`; what is no readable file is reported as damage of class no_file."""
    report = FileReport(path)
    try:
        report.size_bytes = path.stat().st_size
        for line, found in _examined(path):
            if isinstance(found, BadLine):
                report.refuse(found.kind, f":{line.number}: {found.kind}: {found}")
            elif path.name in (FILE, TRIALS) and found.target.get("key") != path.parent.name:
                report.refuse("misplaced", f":{line.number}: misplaced: measured for {found.target.get('key')}")
            elif found.outcome in DECIDING:
                report.records += 1
            elif found.outcome == MEASURED:
                report.trials += 1
            else:
                report.failures += 1
    except OSError as error:
        report.refuse("no_file", f": no_file: {error.strerror}")
    return report


def examined(path: Path) -> Iterator[tuple[Line, Record | BadLine]]:
    """Each line of `path` with its record, or with why it has none; raises `UsageError` when it cannot be read."""
    try:
        yield from _examined(path)
    except OSError as error:
        raise UsageError(
            f"a file of a tuning log was expected, but {str(path)!r} cannot be read ({error.strerror}): "
            "leave it out, or correct its permissions"
        ) from error


def _examined(path: Path) -> Iterator[tuple[Line, Record | BadLine]]:
    for line in lines(path):
        text = line.text
        try:
            yield line, parse_line(text)
        except BadLine as bad:
            is_beginning = text.startswith(_BEGINNING) or _BEGINNING.startswith(text.rstrip("\n"))
            if bad.kind == "torn" and is_beginning and not text.rstrip().endswith(_END):
                bad = BadLine(UNFINISHED, "a writer was killed here")
            yield line, bad


def files_at(places: Sequence[str | Path]) -> list[Path]:
    """The log files that `places` mean: a log directory, the directory of one target, or files.

    Raises `UsageError` for a place that does not exist or holds none.
    """
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            files = [place / name for name in (FILE, TRIALS) if os.path.lexists(place / name)] or files_of(place)
            if not files:
                raise UsageError(
                    f"a tuning log with <target-key>/{FILE} was expected in {str(place)!r}, but there is none: "
                    "`halo-tvm logs list` shows where logs are"
                )
            found += files
        elif place.is_file():
            found.append(place)
        else:
            what = "is neither" if place.exists() else "does not exist"
            raise UsageError(f"a tuning log or a file of one was expected, but {str(place)!r} {what}: correct the path")
    return list(dict.fromkeys(found))
