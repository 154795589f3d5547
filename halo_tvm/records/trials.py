"""What was tried and did not win: trials that were timed, and failures. For the tuner; compiling never reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .index import Index
from .record import DECIDING, BadLine, Fingerprint, Record, check_target, parse_line
from .store import FILE, TRIALS, last_lines


class Trials:
    """The trials of some directories on one target's own ISA level, in the order they were made."""

    def __init__(self, paths: Sequence[Path], target: Fingerprint) -> None:
        self._paths = tuple(paths)
        self._target = target
        self._index = Index(target)
        self._index.add(paths)
        self._records: dict[str, list[Record]] = {}

    @classmethod
    def open(cls, directories: Iterable[str | Path], target: Fingerprint) -> Trials:
        """Index trials.jsonl of `directories`, and records.jsonl, where old releases kept failures."""
        folders = [Path(directory) / target.key for directory in directories]
        return cls([folder / name for folder in folders for name in (FILE, TRIALS)], target)

    def of(self, workload: str, rule: str, version: int) -> list[Record]:
        """The trials of one workload."""
        if workload not in self._records:
            self._records[workload] = [r for _, r in self._index.take(workload) if r.outcome not in DECIDING]
        return [r for r in self._records[workload] if (r.rule, r.rule_version) == (rule, version)]

    def latest(self, rule: str, version: int, most: int) -> list[Record]:
        """The latest trials of a rule, of whatever workload, the oldest of them first.

        Only the ends of the files are read, and only as far as it takes: lines stand in the order of writing.
        Lines that cannot be used are left out; they are counted when their workload is asked for.
        """
        found: list[Record] = []
        for path in self._paths:
            own: list[Record] = []
            for text in last_lines(path):
                if rule.encode() not in text:
                    continue
                try:
                    record = parse_line(text.decode(errors="replace"))
                    check_target(record, self._target)
                except BadLine:
                    continue
                if (record.rule, record.rule_version) == (rule, version) and record.outcome not in DECIDING:
                    own.append(record)
                    if len(own) == most:
                        break
            found += reversed(own)
        found.sort(key=lambda record: record.timestamp)
        return found[-most:]

    @property
    def refused(self) -> Mapping[str, int]:
        """Lines among those read so far that could not be used, by class."""
        return dict(self._index.refused)
