"""The records of every log, or of those of one target key."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import LogsConfig
from ...errors import UnknownName, UsageError
from ...records.home import log_dirs
from ...records.record import DECIDING, Record
from ...records.store import files_of
from ...records.verify import examined
from .._show import print_json, table
from ._words import decision, wanted


def run(config: LogsConfig) -> int:
    """Print one row per record; with --trials also what was tried and did not win."""
    rows = list(_records(config))
    if config.json:
        print_json(
            [
                {
                    "key": key,
                    "workload": r.workload,
                    "readable": r.readable,
                    "rule": r.rule,
                    "rule_version": r.rule_version,
                    "decision": dict(r.decision),
                    "outcome": r.outcome,
                    "speedup": r.speedup,
                    "speedup_low": r.speedup_low,
                    "cores": r.cores,
                    "stage": r.stage,
                    "run": r.run,
                    "timestamp": r.timestamp,
                    "message": r.message,
                }
                for key, r in rows
            ]
        )
    elif rows:
        print(
            table(
                ("target key", "rule", "outcome", "speed-up", "decision", "key", "workload"),
                [
                    (key, f"{r.rule} {r.rule_version}", r.outcome, _speedup(r), decision(r), r.workload, r.readable)
                    for key, r in rows
                ],
            )
        )
    else:
        print("no such records: `halo-tvm logs list` shows what there is")
    return 0


def _speedup(record: Record) -> str:
    if not record.speedup:
        return "-"
    return f"{record.speedup:.3f}" + (f" (at least {record.speedup_low:.3f})" if record.speedup_low else "")


def _records(config: LogsConfig) -> Iterator[tuple[str, Record]]:
    if len(config.names) > 1:
        raise UsageError(f"one target key at most was expected, but {len(config.names)} were given: show one by one")
    paths = [path for directory in log_dirs(config.log) for path in files_of(directory)]
    keys = {path.parent.name for path in paths}
    for key in config.names:
        if key not in keys:
            raise UnknownName("tuning log", key, keys, "(`halo-tvm logs list` shows them)")
    for path in paths:
        if not path.is_file() or config.names and path.parent.name not in config.names:
            continue
        for _, r in examined(path):
            if isinstance(r, Record) and (config.trials or r.outcome in DECIDING):
                if wanted(config, r.workload, r.readable, r.rule):
                    yield path.parent.name, r
