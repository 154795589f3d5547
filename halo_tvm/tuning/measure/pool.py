"""The lab of this machine: builders and a runner that live for the whole run. See docs/measurement.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import islice

from ...records.decision import decision_to_plain
from ...targets import Target, usable_cpus
from ..task import Task
from . import protocol as p
from .builders import FIRST, LATER, SPARE, Job, Library
from .building import BuildingLab
from .child import Child, Trouble
from .confined import arguments_of
from .drift import Drift
from .lab import Failure, LabOptions
from .requests import (
    OPEN_TIMES,
    SLOW_BUILDS,
    build_timeout_s,
    checks_of,
    race_request,
    task_request,
    worth_timing,
)

_MOST_BUILDERS = 8
_BUILDER_SHARE = 4  # a builder gets this part of the memory, or more
_FULL, _RACING, _PLAIN = "full", "racing", "plain"


@dataclass
class _Candidate:
    decision: object
    job: Job  # of the form that is raced, the racing form at first
    label: str
    library: Library | None = None
    ships: bool = False  # `final` was asked for


@dataclass
class _State:
    """One task that was opened."""

    task: Task
    request: dict  # TASK
    timed: list[list[int]]
    compare: bool = False
    build_s: float = 0.0  # the slowest form of the default
    first_us: dict[int, float] = field(default_factory=dict)  # by size
    default: Library | None = None
    plain: Library | None = None
    ahead: Job | None = None  # the default, ordered before the task was opened
    racing: Job | None = None  # the default as it is raced against racing forms
    candidates: dict[int, _Candidate] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)  # labels the runner knows
    in_runner: bool = False
    prepared: bool = False

    def forget_runner(self) -> None:
        self.loaded.clear()
        self.in_runner = self.prepared = False


class Pool(BuildingLab):
    """`Lab` on this machine. Use it as a context manager."""

    def __init__(self, target: Target, options: LabOptions, *, seed: int, l3_bytes: int) -> None:
        gpu = target.isa.gpu
        self._l3_bytes = (gpu.l2_bytes if gpu else l3_bytes) if options.cold_cache else 0
        threads = 1 if gpu else options.threads  # of a GPU the host only launches
        cores = len(usable_cpus())
        count = options.builders or min(cores, _MOST_BUILDERS)
        self._shares_cores = cores < threads + count
        memory_bytes = options.memory_bytes // _BUILDER_SHARE
        super().__init__(target, options, builders=count, memory_bytes=memory_bytes, seed=seed)
        # NVIDIA's driver maps memory at its own discretion, and what candidates allocate lies on the GPU.
        arguments = arguments_of(0 if gpu else options.memory_bytes, options.file_bytes, options.modules)
        self._runner = Child("runner", arguments, threads=threads)
        self._states: dict[str, _State] = {}
        self._open: _State | None = None
        self._drift = Drift()
        self.threads = options.threads

    def __enter__(self) -> Pool:
        return self

    def _end_measuring(self) -> None:
        self._runner.close()

    @property
    def restarts(self) -> int:
        return self._builders.restarts + max(0, self._runner.starts - 1)

    @property
    def pids(self) -> list[int]:
        """Of the builders, then of the runner."""
        return [*self._builders.pids, *([self._runner.pid] if self._runner.pid else [])]

    def drift(self) -> float:
        """The largest relative change of the reference kernel within the run."""
        return self._drift.largest

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Begin to build the defaults of tasks, in this order; whatever is asked meanwhile goes first."""
        self._runner.start()
        for task in tasks:
            if task.key not in self._states:
                state = self._states[task.key] = self._state_of(task)
                state.ahead = self._submit(state, task.default, _FULL, SPARE)

    def open(self, task: Task, *, compare: bool = True) -> float:
        """Make `task` the current one; see `Lab`. A task that was opened before costs next to nothing."""
        state = self._states.get(task.key)
        sizes = [list(s.dims) for s in task.sizes]
        if state is None:
            state = self._states[task.key] = self._state_of(task)
        elif sizes != [list(s.dims) for s in state.task.sizes]:
            state.task = task
            state.in_runner = False
            state.first_us.clear()
            if any(dims not in state.timed for dims in sizes):
                state.timed, state.racing = sizes, None
                state.loaded.discard(_label(p.DEFAULT_ID, _RACING))
        state.compare = state.compare or compare
        self._open = state
        self._runner.start()
        self._ensure(state)
        probe = len(sizes) - 1 if compare else 0
        if probe not in state.first_us:
            state.first_us[probe] = self._probe(state, _label(p.DEFAULT_ID, _FULL), probe, None)
        return state.first_us[probe]

    def order(self, decisions: Sequence[object]) -> list[int]:
        """Begin to build candidates of the open task, in this order; returns their ids at once."""
        state = self._state
        self._order_racing_default(state)
        ids = list(islice(self._ids, len(decisions)))
        for candidate, decision in zip(ids, decisions):
            job = self._submit(state, decision, _RACING)
            state.candidates[candidate] = _Candidate(decision, job, _label(candidate, _RACING))
        return ids

    def take(self, candidate: int) -> float:
        """Wait for a candidate; it is checked and run once. Returns that time in us."""
        state = self._state
        entry = state.candidates[candidate]
        try:
            library = entry.job.library(candidate)
            self._ensure(state)
            self._load_racing_default(state)
            # A library that is complete is checked as it ships, and is final already.
            check = p.BY_DEFAULT if library.special else p.REFERENCES
            self._load(state, entry.label, library, candidate, check if state.compare else None)
            entry.library = library
            size = len(state.task.sizes) // 2  # the heaviest takes as long as a whole round of a race
            default_us = self._first_us(state, size)
            return worth_timing(lambda: self._probe(state, entry.label, size, candidate), default_us, candidate)
        except Failure as failure:
            if failure.blamed == candidate:
                self._forget(state, [candidate])
            raise

    def race(self, candidates: Sequence[int], size: int, rounds: int, default_us: float) -> dict[int, list[float]]:
        """Samples in us of each candidate at the size of that index, taken in turns.

        `default_us`, about what one call takes, sets how many calls a turn has and how long to wait. A race
        during which the machine was not itself is repeated once.
        """
        state = self._state
        self._ensure(state)
        for candidate in candidates:
            if candidate != p.DEFAULT_ID:
                entry = state.candidates[candidate]
                self._load(state, entry.label, entry.library, candidate, None)
        labels = {self._raced_label(state, c, candidates): c for c in candidates}
        request, expected_s = race_request(list(labels), size, rounds, default_us)
        request["key"] = state.task.key
        reply = self._timed(request, expected_s, labels)
        if self._drift.repeats(reply["reference_us"]):
            reply = self._timed(request, expected_s, labels)
        self._drift.note(reply["reference_us"])
        return {labels[label]: us for label, us in reply["us"].items()}

    def final(self, candidate: int) -> None:
        """Build the form that ships, compare it with the unscheduled function, put it in the racing form's place."""
        state = self._state
        entry = state.candidates[candidate]
        if entry.ships or (entry.library is not None and not entry.library.special):
            entry.ships = True
            return
        job = self._submit(state, entry.decision, _FULL, FIRST)
        try:
            library = job.library(candidate)
            self._ensure(state)
            label = _label(candidate, _FULL)
            self._load(state, label, library, candidate, p.REFERENCES if state.compare else None)
        except Failure as failure:
            if failure.blamed == candidate:
                self._forget(state, [candidate])
            raise
        self._free(state, entry)
        entry.job, entry.label, entry.library, entry.ships = job, label, library, True

    def drop(self, candidates: Sequence[int]) -> None:
        """Forget candidates, built or not."""
        for state in self._states.values():
            found = [c for c in candidates if c in state.candidates]
            if found:
                self._forget(state, found)

    @property
    def _state(self) -> _State:
        assert self._open is not None, "open a task first"
        return self._open

    def _state_of(self, task: Task) -> _State:
        request = task_request(task, self._target, self._options.vector_math)
        return _State(task, request, [list(s.dims) for s in task.sizes])

    # Building

    def _submit(self, state: _State, decision: object, form: str, priority: int = LATER) -> Job:
        plain = None if form == _PLAIN else decision_to_plain(decision)
        timeout_s = build_timeout_s(self._target, self._options.timeout_s) + SLOW_BUILDS * state.build_s
        return self._builders.submit(
            state.request, plain, state.timed if form == _RACING else None, timeout_s, priority
        )

    def _default_job(self, state: _State) -> Job:
        """The one of `prepare` when a builder has begun it, else one that waits for nobody."""
        job, state.ahead = state.ahead, None
        if job is not None and not job.result.cancel():
            return job
        return self._submit(state, state.task.default, _FULL, FIRST)

    # The runner

    def _ensure(self, state: _State) -> None:
        """The runner knows the task and its default, and has reference results if they are wanted."""
        jobs: list[tuple[str, Job]] = []
        if state.default is None:
            jobs.append(("default", self._default_job(state)))
        checked = checks_of(state.task) if state.compare and not state.prepared else []
        if state.plain is None and any(not by_default for _, by_default in checked):
            jobs.append(("plain", self._submit(state, None, _PLAIN, FIRST)))
        self._open_in_runner(state)
        for name, job in jobs:
            setattr(state, name, job.library(None))
            state.build_s = max(state.build_s, getattr(state, name).build_s)
        default = _label(p.DEFAULT_ID, _FULL)
        self._load(state, default, state.default, None, None)
        if checked:
            plain = _label(p.DEFAULT_ID, _PLAIN)
            if state.plain is not None:
                self._load(state, plain, state.plain, None, None)
            request = {"op": p.PREPARE, "key": state.task.key, "plain": plain, "default": default, "checked": checked}
            self._ask(request, OPEN_TIMES * self._options.timeout_s, None)
            state.loaded.discard(plain)
            state.prepared = True

    def _open_in_runner(self, state: _State) -> None:
        if state.in_runner:
            return
        request = self._open_request(state.request, state.task, self._l3_bytes)
        reply = self._ask(request, OPEN_TIMES * self._options.timeout_s, None)
        for key in reply["evicted"]:
            self._states[key].forget_runner()
        state.in_runner = True

    def _load(self, state: _State, label: str, library: Library, blamed: int | None, check: str | None) -> None:
        if label in state.loaded:
            return
        request = {
            "op": p.LOAD,
            "key": state.task.key,
            "label": label,
            "path": str(library.path),
            "check": check,
            "default": _label(p.DEFAULT_ID, _FULL),
        }
        self._ask(request, self._options.timeout_s, blamed)
        state.loaded.add(label)

    def _order_racing_default(self, state: _State) -> None:
        if state.racing is None:
            state.racing = self._submit(state, state.task.default, _RACING)

    def _load_racing_default(self, state: _State) -> str:
        """The label of the default in the form that racing candidates have: like is raced against like."""
        self._order_racing_default(state)
        library = state.racing.library(None)
        if not library.special:
            return _label(p.DEFAULT_ID, _FULL)
        label = _label(p.DEFAULT_ID, _RACING)
        self._load(state, label, library, None, p.BY_DEFAULT if state.compare else None)
        return label

    def _raced_label(self, state: _State, candidate: int, candidates: Iterable[int]) -> str:
        """Every search race is over one default, the racing form; only what ships is raced against what ships.

        A complete candidate is the same code in both forms, so it does not decide.
        """
        if candidate != p.DEFAULT_ID:
            return state.candidates[candidate].label
        if all(state.candidates[c].ships for c in candidates if c != p.DEFAULT_ID):
            return _label(p.DEFAULT_ID, _FULL)
        return self._load_racing_default(state)

    def _first_us(self, state: _State, size: int) -> float:
        if size not in state.first_us:
            state.first_us[size] = self._probe(state, _label(p.DEFAULT_ID, _FULL), size, None)
        return state.first_us[size]

    def _probe(self, state: _State, label: str, size: int, blamed: int | None) -> float:
        request = {"op": p.PROBE, "key": state.task.key, "label": label, "size": size}
        with self._quiet():
            return float(self._ask(request, self._options.timeout_s, blamed)["us"])

    def _timed(self, request: dict, expected_s: float, labels: dict[str, int]) -> dict:
        with self._quiet():
            return self._ask(request, self._options.timeout_s + 10 * expected_s, None, labels)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """No builder runs on a core that the kernels use."""
        with self._builders.held() if self._shares_cores else nullcontext():
            yield

    def _ask(self, request: dict, timeout_s: float, blamed: int | None, labels: dict[str, int] | None = None) -> dict:
        """The runner's reply; `Failure` blames `blamed`, or whoever had the turn."""

        def heard(note: dict) -> None:
            nonlocal blamed
            blamed = labels[note["turn"]]

        try:
            return self._runner.ask(request, timeout_s, heard if labels else None)
        except Trouble as trouble:
            if self._target.spec.gpu and trouble.kind == p.RUN_ERROR:
                self._runner.close()  # a fault of a GPU is in every answer of that process from then on
            raise Failure(trouble.kind, str(trouble), blamed) from trouble
        finally:
            if self._runner.pid is None:  # it died, or was ended
                for state in self._states.values():
                    state.forget_runner()

    # Forgetting

    def _forget(self, state: _State, candidates: Sequence[int]) -> None:
        for candidate in candidates:
            entry = state.candidates.pop(candidate, None)
            if entry is not None:
                self._free(state, entry)

    def _free(self, state: _State, entry: _Candidate) -> None:
        """Without its code in the runner and its library on disk."""
        entry.job.discard()
        if entry.label in state.loaded:
            state.loaded.discard(entry.label)
            with suppress(Failure):  # a runner that died has forgotten everything
                self._ask({"op": p.DROP, "key": state.task.key, "labels": [entry.label]}, self._options.timeout_s, None)


def _label(candidate: int, form: str) -> str:
    return f"{candidate}-{form}"
