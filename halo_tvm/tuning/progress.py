"""Progress of a tuning run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tqdm import tqdm

_LINE_EVERY_S = 10.0


class Progress:
    """Shows task i/n, the best speed-up so far, trials that went well or failed, and the time that is left."""

    def __init__(self, tasks: int, budget_s: float, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._tasks = tasks
        self._budget_s = budget_s
        self._name = ""
        self._at = 0
        self._ok = 0
        self._failed = 0
        self._best = 1.0
        self._spoke = time.monotonic()
        self._start = time.monotonic()
        self._bar = (
            tqdm(
                total=round(budget_s),
                unit="s",
                file=self._stream,
                leave=False,
                bar_format="{l_bar}{bar}| {elapsed}<{remaining} {postfix}",
            )
            if self._stream.isatty()
            else None
        )

    def task(self, name: str) -> None:
        """The next task begins."""
        self._at += 1
        self._name, self._best = name, 1.0
        self._say(f"task {self._at}/{self._tasks}: {name}")

    def trial(self, ok: bool, best: float) -> None:
        """A candidate was measured or failed; `best` is the best speed-up over the default so far."""
        self._ok += ok
        self._failed += not ok
        self._best = best
        if self._bar is not None:
            self._update()
        elif time.monotonic() - self._spoke > _LINE_EVERY_S:
            self._say(f"task {self._at}/{self._tasks}: {self._counts()}")

    def best(self, speedup: float) -> None:
        """A batch ended with this best speed-up over the default."""
        self._best = speedup

    def done(self, line: str) -> None:
        """The task ended; `line` says how."""
        self._say(f"task {self._at}/{self._tasks}: {line} ({self._counts()})")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def note(self, line: str) -> None:
        """A line of its own."""
        self._say(line)

    def _counts(self) -> str:
        return f"best {self._best:.3f}x, trials {self._ok} ok, {self._failed} failed"

    def _say(self, line: str) -> None:
        self._spoke = time.monotonic()
        if self._bar is None:
            self._stream.write(f"tune: {line}\n")
            self._stream.flush()
        else:
            self._bar.write(f"tune: {line}", file=self._stream)
            self._update()

    def _update(self) -> None:
        self._bar.n = min(round(time.monotonic() - self._start), round(self._budget_s))
        self._bar.set_description_str(f"{self._at}/{self._tasks} {self._name[:40]}", refresh=False)
        self._bar.set_postfix_str(self._counts())
