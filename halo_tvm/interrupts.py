"""Ctrl-C that a library loses: noted when it comes, asked for before a step that cannot be taken back. And SIGTERM.

Python raises KeyboardInterrupt wherever it is. Inside the start of a library, or a callback from native code, the
exception may become another one, or nothing at all; the signal itself is not lost.
"""

from __future__ import annotations

import signal
import sys
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


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """A SIGTERM ends what is inside as Ctrl-C would, so that it says what it kept; then the signal ends the process.

    Schedulers and containers end their jobs so. In other threads than the first, and where somebody handles or ignores
    the signal, it means what it meant.
    """
    if (
        signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            sys.stdout.flush()
            sys.stderr.flush()
            signal.raise_signal(signal.SIGTERM)
