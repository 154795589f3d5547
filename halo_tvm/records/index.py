"""The lines of a log by workload, verified and parsed only when they are asked for.

Opening a log of 100,000 lines must not cost 100,000 checksums. `Record.line` writes the keys in order,
so that a whole line begins with "candidate_us" and ends with its workload: those two places are
read from each line, and lines that look otherwise are examined at once. So is a log of few lines.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from .record import LONGEST, BadLine, Fingerprint, Record, check_target, parse_line
from .store import Line, lines

_LOGGER = logging.getLogger(__name__)
_FEW = 1000  # lines that are examined when a log is opened: some tenths of a second
_REASONS_KEPT = 20
_DAMAGE = ("torn", "wrong_checksum", "malformed", "no_file")
_HEAD, _TAIL, _END = b'{"candidate_us":', b',"workload":"', b'"}'
_FAMILY = b'"family":"'


class _Place(NamedTuple):
    file: int
    number: int
    offset: int
    length: int


class Index:
    """Lines of some files that `target` may use. `refused` counts those that cannot be, `reasons` names the first."""

    def __init__(self, target: Fingerprint) -> None:
        self.lines = 0
        self.examined = 0
        self.refused: Counter[str] = Counter()
        self.reasons: list[str] = []
        self._target = target
        self._files: list[Path] = []
        self._places: dict[str, list[_Place]] = {}  # what is not examined yet
        self._workloads: dict[str, dict[str, None]] = {}  # by family

    def add(self, paths: Sequence[Path]) -> None:
        """Index `paths`; one that does not exist counts as empty, another that is no readable file as refused."""
        for path in paths:
            self._files.append(path)
            if path.is_symlink() or path.exists():
                try:
                    for line in lines(path):
                        self._add(line)
                except OSError as error:
                    self._refuse("no_file", f"{path}: {error.strerror}")

    @property
    def is_small(self) -> bool:
        """Whether everything may be examined without anyone waiting for it."""
        return self.lines <= _FEW

    def waiting(self) -> list[str]:
        """Workloads with lines that were not examined yet."""
        return list(self._places)

    def family(self, family: str) -> list[str]:
        """Workloads with a line of `family`."""
        return list(self._workloads.get(family, ()))

    def take(self, workload: str) -> list[tuple[int, Record]]:
        """(number of the file, record) of the lines of `workload` that can be used, as they stand; once only."""
        found = []
        for file, places in groupby(self._places.pop(workload, ()), key=lambda place: place.file):
            for line in self._read(file, list(places)):
                record = self._parse(file, line)
                if record is not None and record.workload == workload:
                    found.append((file, record))
        return found

    def _add(self, line: Line) -> None:
        self.lines += 1
        data = line.data
        place = _Place(len(self._files) - 1, line.number, line.offset, len(data))
        workload = _workload_of(data)
        if workload is not None:
            at = data.find(_FAMILY)
            family = data[at + len(_FAMILY) : data.find(b'"', at + len(_FAMILY))].decode(errors="replace")
            self._note(place, workload, family if at >= 0 else "")
            return
        record = self._parse(place.file, line)
        if record is not None:
            self.examined -= 1  # it will be again
            self._note(place, record.workload, record.family)

    def _note(self, place: _Place, workload: str, family: str) -> None:
        self._places.setdefault(workload, []).append(place)
        if family:
            self._workloads.setdefault(family, {})[workload] = None

    def _read(self, file: int, places: Sequence[_Place]) -> list[Line]:
        found = []
        try:
            with open(self._files[file], "rb") as opened:
                for place in places:
                    opened.seek(place.offset)
                    found.append(Line(place.number, place.offset, opened.read(place.length)))
        except OSError:  # gone meanwhile: empty lines are refused
            found += [Line(place.number, place.offset, b"") for place in places[len(found) :]]
        return found

    def _parse(self, file: int, line: Line) -> Record | None:
        self.examined += 1
        try:
            record = parse_line(line.text)
            check_target(record, self._target)
            return record
        except BadLine as bad:
            self._refuse(bad.kind, f"{self._files[file]}:{line.number}: {bad}")
            return None

    def _refuse(self, kind: str, reason: str) -> None:
        self.refused[kind] += 1
        if len(self.reasons) < _REASONS_KEPT:
            self.reasons.append(f"{kind}: {reason}")
            if kind in _DAMAGE:
                _LOGGER.warning("tuning log: a line is dropped (%s): %s", kind, reason)


def _workload_of(data: bytes) -> str | None:
    """The workload at the end of a line that looks whole, else None."""
    if len(data) > LONGEST or not data.startswith(_HEAD):
        return None
    data = data[-200:].rstrip(b"\n")
    at = data.rfind(_TAIL)
    name = data[at + len(_TAIL) : -len(_END)]
    if at < 0 or not data.endswith(_END) or b'"' in name or b"\\" in name or not name.isascii():
        return None
    return name.decode()
