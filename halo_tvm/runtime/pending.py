"""The handle of a run that was queued: whether it is done, and what it gave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """A run on its way. Any thread may ask; asking twice gives the same outputs."""

    def __init__(self, is_done: Callable[[], bool], wait: Callable[[float | None], T]) -> None:
        """`wait(seconds)` returns the outputs, or raises what the run raised, or `TimeoutError`; None: for ever."""
        self._is_done = is_done
        self._wait = wait
        self._lock = threading.Lock()
        self._outputs: list[T] = []

    @property
    def done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        return self._is_done()

    def result(self, timeout_s: float | None = None) -> T:
        """The outputs, as the call itself would return them.

        Raises what the call would have raised, and `TimeoutError` when the run takes longer than `timeout_s`: it
        goes on, and may be asked again.
        """
        if not self._outputs:
            outputs = self._wait(timeout_s)  # outside the lock: each who asks has a time of their own
            with self._lock:
                if not self._outputs:
                    self._outputs.append(outputs)
        return self._outputs[0]
