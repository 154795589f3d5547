"""MetaSchedule's database, two JSON files, becomes records of a log."""

from __future__ import annotations

import importlib
from pathlib import Path

from ...config import LogsConfig
from ...errors import EnvironmentProblem, UsageError
from ...records.merge import add_records
from ._words import written_log
from .merge import show

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


def run(config: LogsConfig) -> int:
    """Import what can be told apart and say what was left out."""
    workloads, tuned = _files(config.names)
    reader = importlib.import_module("halo_tvm.records.import_metaschedule")
    if not hasattr(reader, "records_of"):
        raise EnvironmentProblem(
            "reading MetaSchedule's database was expected, but this release cannot yet: tune with "
            "`halo-tvm tune --engine metaschedule`, which writes records itself"
        )
    records, skipped = reader.records_of(workloads, tuned)
    report = add_records(written_log(config), records)
    for reason in skipped:
        report.refuse("skipped", reason)
    show(report, config, "records")
    return 0


def _files(names: tuple[str, ...]) -> tuple[Path, Path]:
    """MetaSchedule's two files, given by name or by the directory they are in."""
    if len(names) == 1 and Path(names[0]).is_dir():
        found = Path(names[0]) / WORKLOADS, Path(names[0]) / RECORDS
    elif len(names) == 2:
        one, other = map(Path, names)
        found = (other, one) if "workload" in other.name and "workload" not in one.name else (one, other)
    else:
        raise UsageError(
            f"MetaSchedule's {WORKLOADS} and {RECORDS} were expected, or the directory with both, but "
            f"{len(names)} names were given: `halo-tvm logs import DIR`"
        )
    for path in found:
        if not path.is_file():
            raise UsageError(f"a file of MetaSchedule's database was expected, but {str(path)!r} is none: correct it")
    return found
