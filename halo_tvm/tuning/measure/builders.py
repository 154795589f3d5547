"""The builders: some processes that turn decisions into libraries, each watched by a thread of the tuner."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import EnvironmentProblem
from . import protocol as p
from .child import Child, Gone, Trouble
from .lab import Failure

FIRST, LATER, SPARE = 0, 1, 2  # priorities


@dataclass(frozen=True)
class Library:
    """A built candidate on disk."""

    path: Path
    special: bool  # for the timed sizes only
    build_s: float
    builder: int  # process number
    device: Mapping[str, object] | None = None  # what it holds for a GPU (`DeviceCode`): form, reason, kernels


@dataclass(order=True)
class Job:
    """One library to build. `result` becomes a `Library`, or raises `Trouble`."""

    priority: int
    number: int
    task: dict = field(compare=False)  # the TASK request
    decision: object = field(compare=False)  # plain; None: unscheduled
    timed: list[list[int]] | None = field(compare=False)
    timeout_s: float = field(compare=False)
    result: Future[Library] = field(compare=False, default_factory=Future)

    def library(self, blamed: int | None) -> Library:
        """Wait for it; `Failure` blames `blamed`."""
        try:
            return self.result.result()
        except Trouble as trouble:
            raise Failure(trouble.kind, str(trouble), blamed) from trouble

    def discard(self) -> None:
        """Do not begin it, or remove the file when there is one."""
        if not self.result.cancel():
            self.result.add_done_callback(_remove)


class Builders:
    """Give jobs to `submit`; they are begun in order of priority, then of submission."""

    def __init__(self, count: int, arguments: Sequence[str], directory: Path) -> None:
        self._children = [Child("builder", arguments, threads=1) for _ in range(count)]
        self._directory = directory
        self._queue: queue.PriorityQueue[Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closing = False
        self._threads: list[threading.Thread] = []

    @property
    def restarts(self) -> int:
        return sum(max(0, child.starts - 1) for child in self._children)

    @property
    def pids(self) -> list[int]:
        return [pid for child in self._children if (pid := child.pid) is not None]

    def submit(
        self, task: dict, decision: object, timed: list[list[int]] | None, timeout_s: float, priority: int = LATER
    ) -> Job:
        """Begin to build as soon as a builder is free."""
        if not self._threads:
            for child in self._children:
                child.start()
                self._threads.append(threading.Thread(target=self._work, args=(child,), daemon=True))
                self._threads[-1].start()
        job = Job(priority, next(self._numbers), task, decision, timed, timeout_s)
        self._queue.put(job)
        return job

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this lasts no builder runs."""
        try:
            for child in self._children:
                child.pause()
            for child in self._children:
                child.await_pause()
            yield
        finally:
            for child in self._children:
                child.resume()

    def close(self) -> None:
        """End all processes; waiting jobs are cancelled."""
        self._closing = True
        while True:
            try:
                self._queue.get_nowait().result.cancel()
            except queue.Empty:
                break
        for child in self._children:
            child.kill()
        for _ in self._threads:
            self._queue.put(Job(FIRST - 1, next(self._numbers), {}, None, None, 0.0))
        for thread in self._threads:
            thread.join()
        for child in self._children:
            child.close()

    def _work(self, child: Child) -> None:
        known: set[tuple[int, str]] = set()  # (process, task)
        while True:
            job = self._queue.get()
            if self._closing:
                return
            if not job.result.set_running_or_notify_cancel():
                continue
            try:
                library = self._build(child, job, known)
            except (Trouble, EnvironmentProblem, OSError) as error:
                job.result.set_exception(error)
            except BaseException as error:
                job.result.set_exception(error)  # somebody waits for it
                raise
            else:
                job.result.set_result(library)

    def _build(self, child: Child, job: Job, known: set[tuple[int, str]]) -> Library:
        child.start()
        pid, key = child.pid, job.task["key"]
        if (pid, key) not in known:
            child.ask(job.task, job.timeout_s)
            known.add((pid, key))
        path = self._directory / f"{job.number}.so"
        request = {"op": p.BUILD, "key": key, "path": str(path), "decision": job.decision, "timed": job.timed}
        try:
            reply = child.ask(request, job.timeout_s)
        except Trouble as trouble:
            for left in (path, path.with_suffix(".o")):
                left.unlink(missing_ok=True)
            if isinstance(trouble, Gone) and not self._closing:
                child.start()  # while others build
            raise
        return Library(path, reply["special"], reply["build_s"], pid, reply["device"])


def _remove(result: Future[Library]) -> None:
    if not result.cancelled() and result.exception() is None:
        result.result().path.unlink(missing_ok=True)
