"""Processes that tests start out of a test process, which may have grown large and run in the background."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """Children that start in here end at SIGINT; a test run in the background would make them ignore it.

    A handler becomes the default action in a new program, without `preexec_fn`, which would copy this process.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def children_of(pid: int) -> list[int]:
    """Processes that any thread of `pid` started: children of a tuner are started by threads that wait for them."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for one in lists for child in one.read_text().split()]


def fork() -> int:
    """`os.fork`; skips the test where the host refuses to copy a process of this size."""
    try:
        return os.fork()
    except OSError as reason:
        if reason.errno != errno.ENOMEM:
            raise
        pytest.skip("the host does not copy a test process as large as this one: run the test alone")
