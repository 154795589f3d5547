"""Progress of a tuning run: a bar on a terminal, plain lines elsewhere; never on standard output."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm

from ..text import one_line

LINE_EVERY_S = 10.0
_BAR = "{l_bar}{bar}| {elapsed} {postfix}"
_SHOWN_GAIN = 0.005  # a better speed-up gets a line of its own when it shows in two digits


class Progress:
    """Shows task i/n, best latency and speed-up so far, trials by outcome, the stage, and the time that is left.

    The tuner may go from task to task and back: every call says which task it is about. As a context manager
    it also speaks when nothing happens, at least every `LINE_EVERY_S`.
    """

    def __init__(
        self,
        tasks: int,
        budget_s: float,
        stream: TextIO | None = None,
        *,
        trials: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._tasks, self._budget_s, self._trials = tasks, budget_s, trials
        self._now = now
        self._start = self._spoke = now()
        self._before = (0.0, 0, 0)
        self._order: dict[str, int] = {}  # task key -> i of task i/n, in order of beginning
        self._names: dict[str, str] = {}
        self._best: dict[str, tuple[float, float]] = {}  # task key -> (us, speed-up)
        self._ended: set[str] = set()
        self._current = ""
        self._stage = ""
        self._ok = 0
        self._failed: Counter[str] = Counter()
        self._lock = threading.RLock()  # the ticking thread speaks too
        self._over = threading.Event()
        _, total = self._done_of()
        self._bar = (
            tqdm(total=max(1, round(total)), file=self._stream, leave=False, bar_format=_BAR)
            if self._stream.isatty()
            else None
        )

    def __enter__(self) -> Progress:
        threading.Thread(target=self._tick, name="halo-tvm progress", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def goes_on(self, seconds: float, trials: int, tasks: int) -> None:
        """What a run that goes on had used and finished before: all of it counts against the budget."""
        with self._lock:
            self._before = (seconds, trials, tasks)

    def begin(self, task_key: str, readable: str) -> None:
        """The tuner turns to a task, for the first time or again."""
        with self._lock:
            is_new = task_key not in self._order
            self._order.setdefault(task_key, len(self._order) + 1)
            self._names[task_key] = one_line(readable)
            self._current = task_key
            if is_new:
                self._say(f"{self._which()}: {self._names[task_key]}")
            else:
                self._update()

    def trial(self, task_key: str, ok: bool, reason: str, best_us: float, speedup: float) -> None:
        """A candidate was measured, or failed for `reason` (an error class).

        `best_us` is the best latency of the task so far, `speedup` that over the default.
        """
        with self._lock:
            self._ok += ok
            self._failed.update([] if ok else [reason or "failed"])
            _, before = self._best.get(task_key, (0.0, 1.0))
            self._best[task_key] = (best_us, speedup)
            self._current = task_key
            if speedup > before + _SHOWN_GAIN and self._bar is None:
                self._say(f"{self._which()}: better: {self._status()}")
            else:
                self._due()

    def ended(self, task_key: str, line: str) -> None:
        """The task is done; `line` says how it ended."""
        with self._lock:
            self._ended.add(task_key)
            self._current = task_key
            self._say(f"{self._which()}: {one_line(line)} ({self._status()})")

    def stage(self, name: str) -> None:
        """What the tuner does now: a stage of the search, or "defaults", "confirming" and the like."""
        with self._lock:
            self._stage = one_line(name)
            self._due()

    def note(self, line: str) -> None:
        """A line of its own."""
        with self._lock:
            self._say(one_line(line))

    def close(self) -> None:
        """The bar goes, and the thread ends; lines may still be noted."""
        self._over.set()
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def left_s(self) -> float:
        """Time to the expected end: of the budget, or earlier when tasks or trials run out at the present rate."""
        elapsed = self._now() - self._start
        before_s, trials, tasks = self._before
        ends = [max(0.0, self._budget_s - before_s - elapsed)]
        if self._ended:
            ends.append(elapsed / len(self._ended) * max(0, self._tasks - tasks - len(self._ended)))
        done = self._ok + sum(self._failed.values())
        if self._trials is not None and done:
            ends.append(elapsed / done * max(0, self._trials - trials - done))
        return min(ends)

    def _tick(self) -> None:
        while not self._over.wait(LINE_EVERY_S / 10):
            with self._lock:
                if not self._over.is_set():
                    self._due()

    def _due(self) -> None:
        """The bar is brought up to date; a line is due when none was written for a while."""
        if self._bar is not None:
            self._update()
        elif self._now() - self._spoke >= LINE_EVERY_S * 0.9:
            self._say(f"{self._which()}: {self._status()}")

    def _done_of(self) -> tuple[float, float]:
        """(how far the bar is, how far it goes): seconds of the budget."""
        return self._before[0] + self._now() - self._start, self._budget_s

    def _which(self) -> str:
        at = self._order.get(self._current)
        return f"task {at}/{self._tasks}" if at else f"{self._tasks} tasks"

    def _status(self) -> str:
        best_us, speedup = self._best.get(self._current, (0.0, 1.0))
        latency = f"{best_us:.1f} us, " if best_us else ""
        stage = f", {self._stage}" if self._stage else ""
        return f"best {latency}{speedup:.3f}x, trials {self._ok} ok, {self._failures()}{stage}, {self._left()}"

    def _failures(self) -> str:
        classes = ", ".join(f"{count} {kind}" for kind, count in self._failed.most_common())
        return f"{sum(self._failed.values())} failed" + (f" ({classes})" if classes else "")

    def _left(self) -> str:
        return f"{_duration(self.left_s())} left"

    def _say(self, line: str) -> None:
        self._spoke = self._now()
        if self._bar is None:
            self._stream.write(f"tune: {line}\n")
            self._stream.flush()
        else:
            self._bar.write(f"tune: {line}", file=self._stream)
            self._update()

    def _update(self) -> None:
        if self._bar is None:
            return
        self._bar.n = min(round(self._done_of()[0]), self._bar.total)
        name = self._names.get(self._current, "")[:40]
        self._bar.set_description_str(f"{self._which()} {name}", refresh=False)
        self._bar.set_postfix_str(self._status())


class BuildProgress(Progress):
    """The same of a run that builds `candidates` and measures none: each is a line, and there is no latency to show."""

    def __init__(
        self,
        tasks: int,
        candidates: int,
        budget_s: float,
        stream: TextIO | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(tasks, budget_s, stream, trials=candidates, now=now)

    def built(self, task_key: str, readable: str, rank: int, reason: str = "", why: str = "") -> None:
        """The candidate of that rank was built, or failed for `reason` (an error class), and `why`."""
        with self._lock:
            self._ok += not reason
            self._failed.update([reason] if reason else [])
            self._order.setdefault(task_key, len(self._order) + 1)
            self._names[task_key] = one_line(readable)
            self._current = task_key
            what = f"failed: {reason}: {why}" if reason else "is built, not measured"
            self._say(one_line(f"{self._which()}: candidate {rank} {what} ({self._status()}): {readable}"))

    def _done_of(self) -> tuple[float, float]:
        return self._ok + sum(self._failed.values()), self._trials or 0

    def _status(self) -> str:
        stage = f", {self._stage}" if self._stage else ""
        return f"{self._ok} of {self._trials} built, {self._failures()}{stage}, {self._left()}"


def say(line: str, stream: TextIO | None = None) -> None:
    """A line before there are tasks to show the progress of."""
    stream = sys.stderr if stream is None else stream
    stream.write(f"tune: {one_line(line)}\n")
    stream.flush()


def _duration(seconds: float) -> str:
    """`3m20s`, `45s`: what a person reads at a glance."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"
