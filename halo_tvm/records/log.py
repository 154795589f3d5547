"""Tuning logs opened for look-up: what fits a target, what does not and why, in one report.

Opening reads the files once and remembers where the lines of each workload are (`index.py`); looking
up a workload parses its lines the first time, and is a dictionary access afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .index import Index
from .record import DECIDING, IMPROVED, WITHDRAWN, Fingerprint, Record, measured_again, only_a_hint, unlikeness
from .store import FILE, TRIALS, append


@dataclass(frozen=True)
class LookupReport:
    """What opening a log and looking things up in it came to.

    Of the `lines` in the files `examined` were verified and parsed: all of them in a small log, in a large one
    those of the workloads that were looked up, and those that do not look whole. The counts are of what was
    examined.
    `refused` counts lines by class: torn, wrong_checksum, future_schema, malformed, larger_isa,
    other_target; no_file counts files. `hints` counts records that are only worth trying again:
    smaller_isa, fewer_cores, other_rule_version. `reasons` names the first refusals by file and line.
    """

    directories: tuple[str, ...]
    lines: int
    examined: int
    usable: int
    failures: int
    refused: Mapping[str, int]
    hints: Mapping[str, int]
    hits: int
    misses: int
    missed: tuple[str, ...]
    reasons: tuple[str, ...]

    def to_plain(self) -> dict[str, object]:
        return {
            "directories": list(self.directories),
            "lines": self.lines,
            "examined": self.examined,
            "usable": self.usable,
            "failures": self.failures,
            "refused": dict(self.refused),
            "hints": dict(self.hints),
            "hits": self.hits,
            "misses": self.misses,
            "missed": list(self.missed),
            "reasons": list(self.reasons),
        }


class TuningLog:
    """The records of some directories that matter to one target; `open` makes one."""

    def __init__(self, directories: Sequence[Path], target: Fingerprint) -> None:
        self.directories = tuple(directories)
        self.target = target
        self._records: dict[tuple[str, str], list[Record]] = {}  # usable on this target, in look-up order
        self._hints: dict[tuple[str, str], list[Record]] = {}  # of smaller ISA levels, or far fewer cores
        self._failures = 0  # in files that old releases wrote
        self._index = Index(target)
        self._directory: list[int] = []  # of each file in the index
        self._left = {"smaller_isa": 0, "fewer_cores": 0}
        self._other_version: dict[tuple[str, str], int] = {}  # counted when looked up: only then is the rule known
        self._hits = 0
        self._missed: dict[str, None] = {}

    @classmethod
    def open(cls, directories: Iterable[str | Path], target: Fingerprint) -> TuningLog:
        """Read the records for `target` from `directories`; those that do not exist count as empty."""
        log = cls([Path(d) for d in directories], target)
        for number, directory in enumerate(log.directories):
            paths = [directory / target.key_of(isa) / FILE for isa in target.isas]
            log._directory += [number] * len(paths)
            log._index.add(paths)
        if log._index.is_small:
            for workload in log._index.waiting():
                log._examine(workload)
        return log

    def best(self, workload: str, rule: str, version: int, *, readable: str = "") -> Record | None:
        """The record to apply, or None, which is counted as a miss and reported under `readable`.

        The first directory that has a usable record decides. Within it, those measured with the target's cores
        and caches come first, then those with its cores; of the measurements of one decision on one
        machine only the latest counts, and none once it was withdrawn, in whatever directory; then the largest
        lower bound of the speed-up decides, then the latest.
        """
        key = (workload, rule)
        current = self.standing(workload, rule, version)
        known = self._records.get(key, ())
        if len(current) < len(known):
            self._other_version[key] = len(known) - len(current)
        if not current:
            self._missed[f"{readable or workload} ({rule})"] = None
            return None
        self._hits += 1
        return current[0]

    def standing(self, workload: str, rule: str, version: int) -> list[Record]:
        """The records that look-up chooses from, the one that it takes first."""
        self._examine(workload)
        return [r for r in self._records.get((workload, rule), ()) if r.rule_version == version]

    def hints(self, workload: str, rule: str, version: int) -> list[Record]:
        """Records worth measuring again for this workload: the usable ones, then those that are only hints."""
        self._examine(workload)
        own = self._records.get((workload, rule), [])
        return sorted(own, key=lambda r: r.rule_version != version) + self._hints.get((workload, rule), [])

    def nearest(
        self, family: str, extents: Sequence[int], rule: str, version: int, *, exclude: str, most: int = 4
    ) -> list[Record]:
        """What won for other sizes: records of `family` and this version of the rule, the nearest first.

        The distance is the sum of |log(a / b)| over the extents. Each workload but `exclude` gives the record
        that look-up would choose, those of the target's own ISA before smaller ones at the same
        distance; a decision is named once. Empty without a family.
        """
        for workload in self._index.family(family) if family else ():
            self._examine(workload)
        found: list[tuple[float, int, Record]] = []
        for level, records in enumerate((self._records, self._hints)):
            for (workload, _), known in records.items():
                first = next((r for r in known if r.rule == rule and r.rule_version == version), None)
                if first is None or workload == exclude or not family or first.family != family:
                    continue
                if len(first.extents) == len(extents):
                    found.append((_distance(first.extents, extents), level, first))
        found.sort(key=lambda entry: entry[:2])
        kept: list[Record] = []
        for _, _, record in found:
            if len(kept) < most and all(record.decision != other.decision for other in kept):
                kept.append(record)
        return kept

    def workloads(self) -> list[tuple[str, str]]:
        """(workload, rule) of every record that is usable or a hint; examines every line."""
        for workload in self._index.waiting():
            self._examine(workload)
        return list(dict.fromkeys([*self._records, *self._hints]))

    def report(self) -> LookupReport:
        return LookupReport(
            directories=tuple(str(d) for d in self.directories),
            lines=self._index.lines,
            examined=self._index.examined,
            usable=sum(map(len, self._records.values())),
            failures=self._failures,
            refused=dict(self._index.refused),
            hints={**self._left, "other_rule_version": sum(self._other_version.values())},
            hits=self._hits,
            misses=len(self._missed),
            missed=tuple(self._missed),
            reasons=tuple(self._index.reasons),
        )

    def _examine(self, workload: str) -> None:
        """Parse the lines of `workload` and put them into look-up order, the first time."""
        found = self._index.take(workload)
        # Stable sorts, the last criterion first; files were indexed in look-up order.
        found.sort(key=lambda entry: entry[1].timestamp)
        found.reverse()
        found = _without_withdrawn(found)
        seen: set[tuple[int, str]] = set()
        older: set[int] = set()
        for file, record in found:
            what = self._directory[file], measured_again(record)
            if what in seen:
                older.add(id(record))
            seen.add(what)
        found.sort(key=lambda entry: entry[1].speedup_low, reverse=True)
        found.sort(key=lambda entry: id(entry[1]) in older)
        found.sort(key=lambda entry: unlikeness(entry[1], self.target))
        found.sort(key=lambda entry: self._directory[entry[0]])
        for _, record in found:
            key = (record.workload, record.rule)
            if record.outcome != IMPROVED:
                self._failures += 1
            elif why := only_a_hint(record, self.target):
                self._left[why] += 1
                self._hints.setdefault(key, []).append(record)
            else:
                self._records.setdefault(key, []).append(record)


def commit(directory: str | Path, target: Fingerprint, records: Iterable[Record]) -> Path:
    """Append `records` to the log in `directory`, under the target's key; see `store.append`.

    Winners, and those withdrawn, go to records.jsonl, whose path is returned; trials and failures to trials.jsonl
    beside it.
    """
    records = list(records)
    won = [r for r in records if r.outcome in DECIDING]
    tried = [r for r in records if r.outcome not in DECIDING]
    # Trials first: they are no loss when a kill comes between the two.
    if tried:
        append(Path(directory), target.key, tried, TRIALS)
    if won:
        append(Path(directory), target.key, won)
    return Path(directory) / target.key / FILE


def _without_withdrawn(found: Sequence[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """`found`, the latest first, without the winners that were withdrawn later, and without those lines."""
    withdrawn: set[str] = set()
    kept = []
    for file, record in found:
        if record.outcome == WITHDRAWN:
            withdrawn.add(measured_again(record))
        elif record.outcome != IMPROVED or not withdrawn or measured_again(record) not in withdrawn:
            kept.append((file, record))
    return kept


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Sum of |log(a / b)|; numbers of different sign, or a zero and another, are as far apart as any."""
    return sum(
        abs(math.log(abs(a)) - math.log(abs(b))) if a * b > 0 else 0.0 if a == b else math.inf
        for a, b in zip(one, other)
    )
