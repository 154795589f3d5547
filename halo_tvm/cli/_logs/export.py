"""The winners of a log, written to a directory that is kept under version control."""

from __future__ import annotations

from pathlib import Path

from ...config import LogsConfig
from ...errors import UsageError
from ...records.export import export
from ...records.verify import files_at
from ...text import one_line
from .._show import print_json, table
from ._words import named, written_log

_NAMED = 20


def run(config: LogsConfig) -> int:
    """Export and say what was new, better, and not better."""
    if len(config.names) != 1:
        raise UsageError(
            f"one directory to export to was expected, but {len(config.names)} were given: "
            "`halo-tvm logs export DIR`, for instance the tuning_logs/ of a checkout"
        )
    directory = Path(config.names[0])
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"a directory to export to was expected, but {str(directory)!r} is a file: name another")
    done, left_out = export(files_at([written_log(config)]), directory)
    if config.json:
        print_json(
            {"directory": str(directory), "targets": [one.to_plain() for one in done], "left_out": left_out[:_NAMED]}
        )
        return 0
    print(f"to {one_line(directory)}")
    print(
        table(
            ("new", "better", "not better", "withdrawn", "target key"),
            [(d.new, d.better, d.kept, d.withdrawn, d.key) for d in done],
        )
    )
    if left_out:
        print(f"lines that were left out: {len(left_out)}")
        print(named(left_out[:_NAMED], len(left_out)))
    return 0
