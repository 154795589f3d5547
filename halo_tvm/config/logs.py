"""Options of `halo-tvm logs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ._config import Config, option

LOG_ACTIONS = ("list", "show", "best", "merge", "verify", "export")


@dataclass(frozen=True)
class LogsConfig(Config):
    """Tuning records: where they are, what they say, whether they are whole, and moving them."""

    announced: ClassVar[bool] = False
    action: str = option(
        "list",
        "list, show, best, merge, verify or export",
        positional=True,
        metavar="ACTION",
        choices=LOG_ACTIONS,
    )
    names: tuple[str, ...] = option(
        (), "what the action works on, see above", positional=True, metavar="NAME", split=False
    )
    log: str | None = option(
        None, "this log before all others; merge writes to it (default: the user's log)", metavar="DIR"
    )
    workload: str | None = option(
        None, "show, best: only workloads with this in their key or description", metavar="TEXT"
    )
    rule: str | None = option(None, "show, best: only rules with this in their name", metavar="TEXT")
    target: str = option("cpu", "best: what would be compiled for", short="t", metavar="TARGET")
    trials: bool = option(False, "show: also trials and failures")
    json: bool = option(False, "print JSON")
