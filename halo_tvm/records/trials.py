"""What was tried and did not win: trials that were timed, and failures. For the tuner; compiling never reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from .index import Index
from .record import IMPROVED, Fingerprint, Record
from .store import FILE, TRIALS


class Trials:
    """The trials of some directories on one target's own ISA level, in the order they were made."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._records: dict[str, list[Record]] = {}

    @classmethod
    def open(cls, directories: Iterable[str | Path], target: Fingerprint) -> Trials:
        """Index trials.jsonl of `directories`, and records.jsonl, where old releases kept failures."""
        index = Index(target)
        index.add([Path(directory) / target.key / name for directory in directories for name in (FILE, TRIALS)])
        return cls(index)

    def of(self, workload: str, rule: str, version: int) -> list[Record]:
        """The trials of one workload."""
        if workload not in self._records:
            self._records[workload] = [r for _, r in self._index.take(workload) if r.outcome != IMPROVED]
        return [r for r in self._records[workload] if (r.rule, r.rule_version) == (rule, version)]

    def all(self, rule: str, version: int) -> list[Record]:
        """The trials of every workload of a rule, workload by workload."""
        workloads = dict.fromkeys([*self._records, *self._index.waiting()])
        return [record for workload in workloads for record in self.of(workload, rule, version)]

    @property
    def refused(self) -> Mapping[str, int]:
        """Lines among those read so far that could not be used, by class."""
        return dict(self._index.refused)
