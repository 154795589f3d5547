"""MetaSchedule's database, two JSON files, becomes records of a log."""

from __future__ import annotations

from pathlib import Path

from ...config import LogsConfig
from ...errors import UsageError
from ...records.import_metaschedule import records_of
from ...records.merge import add_records
from ...text import one_line
from ._words import written_log
from .merge import show

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


def run(config: LogsConfig) -> int:
    """Import what can be told apart and say what was left out."""
    workloads, tuned = _files(config.names)
    try:
        records, skipped = records_of(workloads, tuned)
    except OSError as error:
        raise UsageError(
            f"MetaSchedule's database was expected, but {error.filename!r} cannot be read ({error.strerror}): "
            "correct the path or its permissions"
        ) from error
    if skipped and not records:
        raise UsageError(
            f"records that halo_tvm's rules made were expected, but none of {len(skipped)} is one (the first: "
            f"{one_line(skipped[0])}): only a database of `halo-tvm tune --engine metaschedule` can be imported"
        )
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
