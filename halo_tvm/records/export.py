"""Winners of a log for a directory under version control: a line each, in a stable order, without when and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import UsageError
from .record import DECIDING, BadLine, Record, parse_line, standing
from .store import FILE, Line, replace_file
from .verify import examined

_Key = tuple[str, str, int]  # workload, rule, cores: look-up tells those apart


@dataclass(frozen=True)
class Exported:
    """What became of one target's winners: new, better than what was there, not better, withdrawn since."""

    key: str
    new: int
    better: int
    kept: int
    withdrawn: int

    def to_plain(self) -> dict[str, object]:
        return asdict(self)


def export(files: Sequence[Path], directory: Path) -> tuple[list[Exported], list[str]]:
    """Write the winners in `files` to `directory/<target key>/records.jsonl`, each where it beats what is there.

    A winner is the record of the latest version of its rule with the largest lower bound, one for each number of
    cores; of the measurements of one decision on one machine only the latest counts. What was withdrawn since goes from
    `directory`, too.
    Also returns why lines of `files` were left out, by file and line. `UsageError` when a file cannot be
    read, when no line is a record, and when `directory` has lines that do not verify: they would be lost.
    """
    found: dict[str, dict[_Key, list[Record]]] = {}
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
                if record.outcome in DECIDING:
                    found.setdefault(path.parent.name, {}).setdefault(_key(record), []).append(record)
    if left_out and not whole:
        raise UsageError(
            f"records to export were expected, but none of {len(left_out)} lines is one (the first: {left_out[0]}): "
            "`halo-tvm logs verify` names them all"
        )
    return [_write(directory / key / FILE, winners) for key, winners in sorted(found.items())], left_out


def _write(path: Path, found: dict[_Key, list[Record]]) -> Exported:
    counts = {"new": 0, "better": 0, "kept": 0, "withdrawn": 0}

    def change(lines: list[Line]) -> bytes:
        there: dict[_Key, list[Record]] = {}
        texts: dict[int, str] = {}  # by the record's identity: lines that stay, stay as they are
        for line in lines:
            record = _existing(path, line)
            there.setdefault(_key(record), []).append(record)
            texts[id(record)] = line.text.strip() + "\n"
        written = []
        for key in sorted(there.keys() | found.keys()):
            old, new = there.get(key, []), found.get(key, [])
            before, best = _best(old), _best([*old, *new])
            if best is None:
                counts["withdrawn"] += 1
                continue
            if before is not None and _anonymous(best) == _anonymous(before):
                best = before
            if new:
                counts["kept" if best is before else "better" if old else "new"] += 1
            written.append(texts[id(best)] if id(best) in texts else _anonymous(best).line())
        return "".join(written).encode()

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


def _best(records: Sequence[Record]) -> Record | None:
    """The winner among `records`, if one stands; those without a timestamp were exported before, and are the oldest."""
    return max(standing(records), key=_rank, default=None)


def _anonymous(record: Record) -> Record:
    return replace(record, timestamp="", run="")


def _key(record: Record) -> _Key:
    return record.workload, record.rule, record.cores


def _rank(record: Record) -> tuple[int, float]:
    return record.rule_version, record.speedup_low
