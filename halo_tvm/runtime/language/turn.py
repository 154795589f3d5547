"""The right to change the caches of a model without slots beside one another: one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TypeVar

from ...errors import UsageError

_Found = TypeVar("_Found")


class Turn:
    """As a context it waits for its turn; within an answer of this very thread it is a `UsageError`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._speaker: int | None = None  # the thread whose answer goes on

    def __enter__(self) -> None:
        if self._speaker == threading.get_ident():
            raise UsageError(
                "expected one answer at a time, found a stream of this thread that goes on: read it to its end, close "
                "it, or load the model twice"
            )
        self._lock.acquire()
        self._speaker = threading.get_ident()

    def __exit__(self, *_error: object) -> None:
        self._speaker = None
        self._lock.release()

    def take_at_once(self) -> None:
        """For a stream, which ends with `__exit__`; `UsageError` while another answer goes on."""
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "expected one answer at a time, found another that goes on: read it to its end, close it, or load the "
                "model twice"
            )
        self._speaker = threading.get_ident()


def to_its_end(answer: Generator[object, None, _Found]) -> _Found:
    """What a generator returns."""
    while True:
        try:
            next(answer)
        except StopIteration as end:
            found: _Found = end.value
            return found
