"""What the actions share: where to write, what is wanted, names of places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...config import LogsConfig
from ...errors import UsageError
from ...records.home import log_dirs, user_logs
from ...records.record import Record
from ...text import one_line

DAMAGED = 3


def written_log(config: LogsConfig) -> Path:
    """The log that `config` writes to, which is never the shipped one."""
    return log_dirs(config.log)[0] if config.log is not None else user_logs()


def no_names(config: LogsConfig) -> None:
    if config.names:
        raise UsageError(
            f"`halo-tvm logs {config.action}` takes no names, but {config.names[0]!r} was given: see "
            "`halo-tvm logs --help`"
        )


def decision(record: Record) -> str:
    return " ".join(f"{name}={value}" for name, value in record.decision.items())


def wanted(config: LogsConfig, workload: str, readable: str, rule: str) -> bool:
    """Whether --workload and --rule let this one through."""
    in_workload = config.workload is None or config.workload in workload or config.workload in readable
    return in_workload and (config.rule is None or config.rule in rule)


def counts(by_class: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(by_class.items()) if count)


def named(lines: Sequence[str], total: int) -> str:
    """The first refusals, a line each, and how many more there are."""
    more = [f"  and {total - len(lines)} more"] if total > len(lines) else []
    return "\n".join([*(f"  {one_line(line)}" for line in lines), *more])
