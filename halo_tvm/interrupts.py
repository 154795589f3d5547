"""Ctrl-C that a library loses: noted when it comes, asked for before a step that cannot be taken back.

Python raises KeyboardInterrupt wherever it is. Inside the start of a library, or a callback from native code, the
exception may become another one, or nothing at all; the signal itself is not lost.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_blocks: list[list[int]] = []  # what came in each `noted` block that is open


@contextmanager
def noted() -> Iterator[list[int]]:
    """The SIGINTs that arrive meanwhile; each is also handled as before.

    None are in other threads than the first, nor where SIGINT is ignored: a job that a script put into the background.
    """
    seen: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous) or threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        previous(number, frame)

    signal.signal(signal.SIGINT, note)
    _blocks.append(seen)
    try:
        yield seen
    finally:
        _blocks.pop()
        signal.signal(signal.SIGINT, previous)


def raise_noted() -> None:
    """KeyboardInterrupt where one came in an open `noted` block and was lost."""
    if any(_blocks):
        raise KeyboardInterrupt
