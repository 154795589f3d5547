"""The lab on devices of a tracker: libraries are built here, and loaded, checked and timed there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ....records.decision import decision_to_plain
from ....records.record import Fingerprint
from ....targets import Target, read_host
from ...task import Task
from .. import protocol as p
from ..builders import FIRST, Job
from ..building import BuildingLab
from ..child import Gone, Trouble
from ..lab import Failure, LabOptions
from ..requests import (
    OPEN_TIMES,
    SLOW_BUILDS,
    build_timeout_s,
    checks_of,
    race_request,
    task_request,
    worth_timing,
)
from .device import Device
from .session import Session, refuse_other_machines, refuse_other_targets

T = TypeVar("T")

_UPLOAD_S = 120.0  # for the weights of a task, on top of the time of running it
_SESSION_S = 600.0  # after which a server ends a session that hangs; a lab takes another in time
_STRIKES = 2  # sessions that may be lost to the same candidate
_PLAIN = "plain"


class _Lost(Exception):
    """Control flow: a session ended while candidate `blamed` ran, or nothing of ours (None)."""

    def __init__(self, trouble: Trouble, blamed: int | None) -> None:
        super().__init__(str(trouble))
        self.kind = p.TIMEOUT if trouble.kind == p.TIMEOUT else p.CRASH
        self.blamed = blamed


@dataclass
class _Opened:
    """A task that was opened, here and in the session of now."""

    task: Task
    request: dict  # TASK
    default: Job
    plain: Job | None = None
    compare: bool = False
    ordered: dict[int, Job] = field(default_factory=dict)  # not taken yet
    libraries: dict[int, Path] = field(default_factory=dict)  # built, checked, and not dropped
    first_us: float = 0.0
    # In the session:
    loaded: set[int] = field(default_factory=set)
    prepared: bool = False

    def forget_session(self) -> None:
        self.loaded.clear()
        self.prepared = False


class RpcLab(BuildingLab):
    """Measures on devices that the tracker at `address` knows under one key, one at a time.

    A context manager; every method may raise `Failure`. `wait_s` is how long to wait for a free device.
    `LabOptions.threads` is not used: a device runs with the threads of its server. A device with another
    `fingerprint` is refused; None: other than the first one's.

    A session that is lost is nobody's fault the first time: the next free device gets the open task with the
    candidates that are left, and what was asked is asked again. `EnvironmentProblem` when no device is free in time.
    """

    def __init__(
        self,
        target: Target,
        options: LabOptions,
        address: tuple[str, int],
        key: str,
        *,
        seed: int,
        wait_s: float = 60.0,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        builders = options.builders or read_host().cores
        super().__init__(target, options, builders=builders, memory_bytes=options.memory_bytes, seed=seed)
        self._key = key
        self._session = Session(
            address,
            key,
            wait_s=wait_s,
            memory_bytes=options.memory_bytes,
            file_bytes=options.file_bytes,
            gpu=target.spec.gpu,
        )
        self._device: Device | None = None
        self._fingerprint = fingerprint
        self._opened: dict[str, _Opened] = {}
        self._now: _Opened | None = None
        self._open_there: tuple[str, tuple[tuple[int, ...], ...]] | None = None
        self._running: int | None = None
        self._lost = 0

    @property
    def device(self) -> Device:
        """What the device of the first session says of itself."""
        assert self._device is not None, "enter the lab first"
        return self._device

    @property
    def restarts(self) -> int:
        return self._lost + self._builders.restarts

    @property
    def threads(self) -> int:
        return self.device.threads

    def __enter__(self) -> RpcLab:
        try:
            self._begin_session(_SESSION_S)
        except BaseException:
            self.close()
            raise
        return self

    def _end_measuring(self) -> None:
        self._session.end()

    def drift(self) -> None:
        """Not known: no kernel of ours is timed on the device before every race."""

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Nothing: the defaults are built as the tasks are opened."""

    def open(self, task: Task, *, compare: bool = True) -> float:
        """Make `task` the current one. Returns the default's first time in us at its heaviest size."""
        now = self._opened.get(task.key)
        if now is None:
            request = task_request(task, self._target, self._options.vector_math)
            default = self._builders.submit(request, decision_to_plain(task.default), None, self._build_s, FIRST)
            now = self._opened[task.key] = _Opened(task, request, default)
        now.task, now.compare = task, compare or now.compare
        if now.compare and now.plain is None:
            now.plain = self._builders.submit(now.request, None, None, self._build_s, FIRST)
        self._now = now
        now.libraries[p.DEFAULT_ID] = now.default.library(None).path
        if now.plain is not None:
            now.plain.library(None)
        size = len(task.sizes) - 1 if compare else 0
        first_us = self._on_device(lambda: self._probe(p.DEFAULT_ID, size), self._timeout_s)
        if compare:
            now.first_us = first_us
        return first_us

    def order(self, decisions: Sequence[object]) -> list[int]:
        """Begin to build candidates of the open task, in this order; returns their ids at once."""
        now = self._now
        ids = list(islice(self._ids, len(decisions)))
        timeout_s = self._build_s
        if now.default.result.done():
            timeout_s += SLOW_BUILDS * now.default.result.result().build_s
        for candidate, decision in zip(ids, decisions):
            plain = decision_to_plain(decision)
            now.ordered[candidate] = self._builders.submit(now.request, plain, None, timeout_s)
        return ids

    def take(self, candidate: int) -> float:
        """Wait for a candidate that was ordered; it is checked and run once. Returns that time in us."""
        now = self._now
        path = now.ordered.pop(candidate).library(candidate).path
        size = len(now.task.sizes) - 1

        def check_and_run() -> float:
            if candidate not in now.loaded:
                self._load(candidate, path, p.REFERENCES if now.compare else None)
            return worth_timing(lambda: self._probe(candidate, size), now.first_us or math.inf, candidate)

        try:
            first_us = self._on_device(check_and_run, 4 * self._timeout_s)
        except Failure:
            path.unlink(missing_ok=True)
            raise
        now.libraries[candidate] = path
        return first_us

    def race(self, candidates: Sequence[int], size: int, rounds: int, default_us: float) -> dict[int, list[float]]:
        """Samples in us of each candidate at the size of that index, taken in turns."""
        request, expected_s = race_request([str(i) for i in candidates], size, rounds, default_us)
        timeout_s = self._timeout_s + 10 * expected_s

        def run() -> dict[int, list[float]]:
            return {int(label): us for label, us in self._ask(request, timeout_s)["us"].items()}

        return self._on_device(run, timeout_s)

    def final(self, candidate: int) -> None:
        """Nothing to do: every candidate is built as it ships, and checked in full."""

    def drop(self, candidates: Sequence[int]) -> None:
        """Forget candidates, built or not. The device hears of it when it is asked something next."""
        for opened in self._opened.values():
            for candidate in candidates:
                job, path = opened.ordered.pop(candidate, None), opened.libraries.pop(candidate, None)
                if job is not None:
                    job.discard()
                if path is not None:
                    path.unlink(missing_ok=True)

    # On the device

    def _on_device(self, do: Callable[[], T], needed_s: float) -> T:
        """What `do` returns, asked again of another device when the session is lost meanwhile."""
        strikes: Counter[int | None] = Counter()
        while True:
            try:
                if self._session.left_s < needed_s:
                    self._end_session()
                    self._begin_session(max(_SESSION_S, 2 * needed_s))
                self._carry_over()
                return do()
            except _Lost as lost:
                self._lost += 1
                self._end_session()
                strikes[lost.blamed] += 1
                if strikes[lost.blamed] < _STRIKES:
                    continue
                self._drop_failed(lost.blamed)
                message = f"{_STRIKES} devices were lost, the last with: {lost}"
                raise Failure(lost.kind, message, lost.blamed) from lost

    def _begin_session(self, lasting_s: float) -> None:
        device = self._session.begin(lasting_s)
        refuse_other_targets(device, self._target, self._key)
        found = device.fingerprint(self._target)
        self._fingerprint = self._fingerprint or found
        refuse_other_machines(found, self._fingerprint, self._key)
        self._device = self._device or device

    def _end_session(self) -> None:
        self._session.leave()
        self._open_there = None
        for opened in self._opened.values():
            opened.forget_session()

    def _carry_over(self) -> None:
        """Bring the open task, as far as the device does not have it, and take from there what was dropped."""
        now = self._now
        task = now.task
        sizes = tuple(s.dims for s in task.sizes)
        self._running = None
        if self._open_there != (task.key, sizes):
            request = self._open_request(now.request, task, self._cold_bytes)
            request |= {"cold": self._options.cold_cache, "gpu": self._target.spec.gpu}
            for key in self._ask(request, _UPLOAD_S)["evicted"]:
                self._opened[key].forget_session()
            self._open_there = (task.key, sizes)
        for candidate in sorted(now.libraries.keys() - now.loaded):
            self._load(candidate, now.libraries[candidate], None)
        if now.compare and not now.prepared:
            self._prepare()
        dropped = [str(i) for i in now.loaded - now.libraries.keys()]
        self._running = None
        if dropped:
            self._ask({"op": p.DROP, "labels": dropped}, self._timeout_s)
            now.loaded &= now.libraries.keys()

    def _prepare(self) -> None:
        task = self._now.task
        self._running = p.DEFAULT_ID
        path = str(self._now.plain.result.result().path)
        self._ask({"op": p.LOAD, "label": _PLAIN, "path": path, "check": None}, self._timeout_s)
        checked = checks_of(task)
        request = {"op": p.PREPARE, "plain": _PLAIN, "default": str(p.DEFAULT_ID), "checked": checked}
        self._ask(request, OPEN_TIMES * self._timeout_s)
        self._now.prepared = True

    def _load(self, candidate: int, path: Path, check: str | None) -> None:
        self._running = candidate
        self._ask({"op": p.LOAD, "label": str(candidate), "path": str(path), "check": check}, 2 * self._timeout_s)
        self._now.loaded.add(candidate)

    def _probe(self, candidate: int, size: int) -> float:
        self._running = candidate
        return float(self._ask({"op": p.PROBE, "label": str(candidate), "size": size}, self._timeout_s)["us"])

    def _ask(self, request: dict, timeout_s: float) -> dict:
        """The reply; `Failure` when the candidate that runs is at fault, `_Lost` when the device no longer answers."""
        try:
            return self._session.ask({"key": self._now.task.key, **request}, timeout_s, self._note)
        except Gone as gone:
            raise _Lost(gone, self._running) from gone
        except Trouble as trouble:
            if not self._session.is_alive():
                raise _Lost(trouble, self._running) from trouble
            self._drop_failed(self._running)
            if self._target.spec.gpu and trouble.kind == p.RUN_ERROR:
                self._end_session()  # a fault of a GPU is in every answer of that process from then on
            raise Failure(trouble.kind, str(trouble), self._running) from trouble

    def _drop_failed(self, candidate: int | None) -> None:
        if candidate is not None and candidate != p.DEFAULT_ID:
            self.drop([candidate])

    def _note(self, message: dict) -> None:
        self._running = int(message["turn"])

    @property
    def _timeout_s(self) -> float:
        return self._options.timeout_s

    @property
    def _cold_bytes(self) -> int:
        """The cache of a GPU that copies of weights have to overflow; 0 on a CPU, where the one copy is flushed."""
        if self._target.isa.gpu is None or not self._options.cold_cache:
            return 0
        return max(self._target.isa.gpu.l2_bytes, self.device.gpu.l2_bytes)

    @property
    def _build_s(self) -> float:
        return build_timeout_s(self._target, self._timeout_s)
