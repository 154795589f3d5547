"""Winners of a log for a directory under version control: a line each, in a stable order, without when and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError
from .record import IMPROVED, BadLine, Record, parse_line
from .store import FILE, Line, replace_file
from .verify import examined

_Key = tuple[str, str, int]  # workload, rule, cores: look-up tells those apart


@dataclass(frozen=True)
class Exported:
    """What became of one target's winners: new, better than what was there, not better."""

    key: str
    new: int
    better: int
    kept: int

    def to_plain(self) -> dict[str, object]:
        return {"key": self.key, "new": self.new, "better": self.better, "kept": self.kept}


def export(files: Sequence[Path], directory: Path) -> tuple[list[Exported], list[str]]:
    """Write the winners in `files` to `directory/<target key>/records.jsonl`, each where it beats what is there.

    A winner is the record of the latest version of its rule with the largest lower bound, one for each number of
    cores. Also returns why lines of `files` were left out, by file and line. `UsageError` when a file cannot be
    read, when no line is a record, and when `directory` has lines that do not verify: they would be lost.
    """
    found: dict[str, dict[_Key, Record]] = {}
    left_out: list[str] = []
    whole = 0
    for path in files:
        for line, record in examined(path):
            if isinstance(record, BadLine):
                left_out.append(f"{path}:{line.number}: {record.kind}: {record}")
            elif record.target.get("key") != path.parent.name:
                left_out.append(f"{path}:{line.number}: misplaced: measured for {record.target.get('key')}")
            else:
                whole += 1
                if record.outcome == IMPROVED:
                    _keep(found.setdefault(path.parent.name, {}), record)
    if left_out and not whole:
        raise UsageError(
            f"records to export were expected, but none of {len(left_out)} lines is one (the first: {left_out[0]}): "
            "`halo-tvm logs verify` names them all"
        )
    return [_write(directory / key / FILE, winners) for key, winners in sorted(found.items())], left_out


def _write(path: Path, winners: dict[_Key, Record]) -> Exported:
    counts = {"new": 0, "better": 0, "kept": 0}

    def change(lines: list[Line]) -> bytes:
        kept: dict[_Key, Record] = {}
        texts: dict[_Key, str] = {}  # lines that stay, stay as they are
        for line in lines:
            record = _existing(path, line)
            if _keep(kept, record):
                texts[_key(record)] = line.text.strip() + "\n"
        for key, record in winners.items():
            was_there = key in kept
            wins = _keep(kept, record)
            counts["kept" if not wins else "better" if was_there else "new"] += 1
            if wins:
                texts[key] = replace(record, timestamp="", run="").line()
        return "".join(texts[key] for key in sorted(texts)).encode()

    replace_file(path, change)
    return Exported(path.parent.name, **counts)


def _existing(path: Path, line: Line) -> Record:
    try:
        return parse_line(line.text)
    except BadLine as bad:
        raise UsageError(
            f"every line of {str(path)!r} must verify before it is written anew, but line {line.number} does not "
            f"({bad.kind}: {bad}): remove the line, or export to another directory"
        ) from bad


def _keep(kept: dict[_Key, Record], record: Record) -> bool:
    """Put `record` into `kept` when it is better than what is there."""
    other = kept.get(_key(record))
    if other is not None and _rank(record) <= _rank(other):
        return False
    kept[_key(record)] = record
    return True


def _key(record: Record) -> _Key:
    return record.workload, record.rule, record.cores


def _rank(record: Record) -> tuple[int, float]:
    return record.rule_version, record.speedup_low
