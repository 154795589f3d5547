"""List tuning logs in look-up order, or show the records of one."""

from __future__ import annotations

from pathlib import Path

from ..config import LogsConfig
from ..errors import UnknownName
from ..records import log_dirs
from ..records.record import IMPROVED, BadLine, Record, parse_line
from ..records.store import FILE, lines
from ._show import print_json, table

CONFIG = LogsConfig


def run(config: LogsConfig) -> int:
    """Print one row per log, or per record."""
    logs = [(directory, path) for directory in log_dirs(config.log) for path in sorted(directory.glob(f"*/{FILE}"))]
    if config.key is not None:
        keys = {path.parent.name for _, path in logs}
        if config.key not in keys:
            raise UnknownName("tuning log", config.key, keys, "(`halo-tvm logs` lists them)")
        logs = [(directory, path) for directory, path in logs if path.parent.name == config.key]
    return _list(logs, config) if config.action == "list" else _show(logs, config)


def _list(logs: list[tuple[Path, Path]], config: LogsConfig) -> int:
    rows = []
    for directory, path in logs:
        records, bad = _read(path)
        good = sum(record.outcome == IMPROVED for record in records)
        rows.append(
            {
                "key": path.parent.name,
                "records": good,
                "failures": len(records) - good,
                "unreadable": bad,
                "directory": str(directory),
            }
        )
    if config.json:
        print_json(rows)
    elif rows:
        print(
            table(
                ("target key", "records", "failures", "unreadable lines", "directory"),
                [tuple(row.values()) for row in rows],
            )
        )
    else:
        print("no tuning logs yet in " + ", ".join(map(str, log_dirs(config.log))) + ": `halo-tvm tune` writes them")
    return 0


def _show(logs: list[tuple[Path, Path]], config: LogsConfig) -> int:
    records = [(path.parent.name, record) for _, path in logs for record in _read(path)[0]]
    if config.json:
        print_json([
            {"key": key, "workload": r.workload, "readable": r.readable, "rule": r.rule, "decision": dict(r.decision),
             "outcome": r.outcome, "speedup": r.speedup, "speedup_low": r.speedup_low}
            for key, r in records
        ])  # fmt: skip
        return 0
    print(table(("target key", "rule", "outcome", "speed-up", "decision", "workload"), [
        (key, f"{r.rule} {r.rule_version}", r.outcome,
         f"{r.speedup:.3f} (at least {r.speedup_low:.3f})" if r.speedup else "-",
         " ".join(f"{k}={v}" for k, v in r.decision.items()), r.readable)
        for key, r in records
    ]))  # fmt: skip
    return 0


def _read(path: Path) -> tuple[list[Record], int]:
    """The records of a file, and how many lines of it are none."""
    records, bad = [], 0
    for line in lines(path):
        try:
            records.append(parse_line(line.text))
        except BadLine:
            bad += 1
    return records, bad
