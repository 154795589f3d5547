"""The environment variables that stand for options, read when asked for (HALO_TVM_HOME is read in `records.home`)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import UsageError

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Environment:
    """The environment variables that stand for options."""

    threads: int | None  # HALO_TVM_NUM_THREADS
    log: str  # HALO_TVM_LOG: verbosity on stderr, one of LOG_LEVELS


def environment() -> Environment:
    """The environment as it is now; `UsageError` for a value that cannot be meant."""
    threads = os.environ.get("HALO_TVM_NUM_THREADS") or None
    if threads is not None and not (threads.isdecimal() and int(threads) > 0):
        raise UsageError(
            f"HALO_TVM_NUM_THREADS must be a positive number of threads, but is {threads!r}: correct or unset it"
        )
    log = (os.environ.get("HALO_TVM_LOG") or "warning").lower()
    if log not in LOG_LEVELS:
        raise UsageError(f"HALO_TVM_LOG must be one of {', '.join(LOG_LEVELS)}, but is {log!r}: correct or unset it")
    return Environment(int(threads) if threads else None, log)
