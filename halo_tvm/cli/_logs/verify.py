"""Every line of every file of a log is examined; exit code 3 when something is damaged."""

from __future__ import annotations

from collections import Counter

from ...config import LogsConfig
from ...records.home import log_dirs
from ...records.store import files_of
from ...records.verify import files_at, verify_file
from .._show import print_json, size, table
from ._words import DAMAGED, counts, named


def run(config: LogsConfig) -> int:
    """Print what the files hold, and name the lines that cannot be used.

    The beginning of a line is what a killed writer leaves behind, and lines of a newer release are not for this
    one: both are said and are no damage.
    """
    logs = [path for directory in log_dirs(config.log) for path in files_of(directory)]
    reports = [verify_file(path) for path in (files_at(config.names) if config.names else logs)]
    bad = sum((report.bad for report in reports), Counter())
    code = DAMAGED if any(report.damaged for report in reports) else 0
    if config.json:
        print_json({"damaged": bool(code), "bad": dict(bad), "files": [report.to_plain() for report in reports]})
        return code
    if not reports:
        print("no tuning logs yet in " + ", ".join(map(str, log_dirs(config.log))))
        return code
    header = ("records", "trials", "failures", "not usable", "size", "file")
    print(
        table(
            header,
            [(r.records, r.trials, r.failures, counts(r.bad) or "-", size(r.size_bytes), r.path) for r in reports],
        )
    )
    if bad:
        print(named([line for report in reports for line in report.named], sum(bad.values())))
    print("damaged: the lines above are left out, the others are used" if code else "whole")
    return code
