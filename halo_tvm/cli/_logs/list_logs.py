"""One row per log and target: how much is in it."""

from __future__ import annotations

from ...config import LogsConfig
from ...records.home import log_dirs
from ...records.store import files_of
from ...records.verify import verify_file
from .._show import print_json, size, table
from ._words import no_names


def run(config: LogsConfig) -> int:
    """Print the logs in look-up order."""
    no_names(config)
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for directory in log_dirs(config.log):
        for path in files_of(directory):
            report = verify_file(path)
            empty = {"key": path.parent.name, "records": 0, "trials": 0, "failures": 0, "unreadable": 0, "bytes": 0}
            row = rows.setdefault((str(directory), path.parent.name), {**empty, "directory": str(directory)})
            for name, count in (
                ("records", report.records),
                ("trials", report.trials),
                ("failures", report.failures),
                ("unreadable", sum(report.bad.values())),
                ("bytes", report.size_bytes),
            ):
                row[name] += count
    if config.json:
        print_json(list(rows.values()))
    elif rows:
        header = ("target key", "records", "trials", "failures", "unreadable", "size", "directory")
        cells = [[size(int(v)) if k == "bytes" else v for k, v in row.items()] for row in rows.values()]
        print(table(header, cells))
    else:
        print("no tuning logs yet in " + ", ".join(map(str, log_dirs(config.log))) + ": `halo-tvm tune` writes them")
    return 0
