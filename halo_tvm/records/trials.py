"""What was tried and did not win: trials that were timed, and failures. For the tuner; compiling never reads them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from .record import IMPROVED, BadLine, Fingerprint, Record, check_target, parse_line
from .store import FILE, TRIALS, lines

_LOGGER = logging.getLogger(__name__)


class Trials:
    """The trials of some directories on one target's own ISA level, in the order they were made."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], list[Record]] = {}  # by rule and version
        self._of: dict[tuple[str, str, int], list[Record]] = {}
        self._refused: Counter[str] = Counter()

    @classmethod
    def open(cls, directories: Iterable[str | Path], target: Fingerprint) -> Trials:
        """Read trials.jsonl of `directories`, and records.jsonl, where old releases kept failures."""
        trials = cls()
        for directory in directories:
            for name in (FILE, TRIALS):
                path = Path(directory) / target.key / name
                if path.is_file():
                    trials._read(path, target)
        return trials

    def of(self, workload: str, rule: str, version: int) -> list[Record]:
        """The trials of one workload."""
        return list(self._of.get((workload, rule, version), ()))

    def all(self, rule: str, version: int) -> list[Record]:
        """The trials of every workload of a rule."""
        return list(self._records.get((rule, version), ()))

    @property
    def refused(self) -> Mapping[str, int]:
        """Lines that could not be used, by class."""
        return dict(self._refused)

    def _read(self, path: Path, target: Fingerprint) -> None:
        for number, line in lines(path):
            try:
                record = parse_line(line)
                check_target(record, target)
            except BadLine as bad:
                self._refused[bad.kind] += 1
                _LOGGER.warning("tuning log: a line is dropped (%s): %s:%d: %s", bad.kind, path, number, bad)
                continue
            if record.outcome != IMPROVED:
                self._records.setdefault((record.rule, record.rule_version), []).append(record)
                self._of.setdefault((record.workload, record.rule, record.rule_version), []).append(record)
