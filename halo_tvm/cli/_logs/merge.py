"""Lines of other logs that verify are added to one, once each."""

from __future__ import annotations

from ...config import LogsConfig
from ...errors import UsageError
from ...records.merge import MergeReport, merge
from ...records.store import FILE, TRIALS
from ...records.verify import files_at
from ...text import one_line
from .._show import print_json
from ._words import counts, named, written_log


def run(config: LogsConfig) -> int:
    """Merge and say what came of it."""
    if not config.names:
        raise UsageError("logs or files to merge were expected, but none was given: `halo-tvm logs merge SRC...`")
    report = merge(written_log(config), files_at(config.names))
    show(report, config, "lines")
    return 0


def show(report: MergeReport, config: LogsConfig, what: str) -> None:
    """Print what was added, what was there, and what was refused and why."""
    if config.json:
        print_json(report.to_plain())
        return
    added = f"{report.added[FILE]} records and {report.added[TRIALS]} trials and failures added to"
    print(f"{added} {one_line(report.directory)}, {report.duplicates} were there already")
    if report.refused:
        print(f"{what} that were refused: {counts(report.refused)}")
        print(named(report.named, sum(report.refused.values())))
