"""A tuning run: tasks in order of what they could gain, each searched, confirmed and committed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from ..errors import NoValidTrial
from ..records.decision import decision_from_plain, decision_to_plain
from ..records.log import TuningLog, commit
from ..records.record import IMPROVED as COMMITTED
from ..records.record import Fingerprint, Record, Size
from ..targets import Target
from . import result as r
from .budget import Clock
from .measure import make_lab
from .measure import protocol as p
from .measure.lab import Failure, Lab, LabOptions
from .progress import Progress
from .search.candidates import Candidates
from .search.efforts import Effort
from .search.rounds import Confirmed, Search
from .sizes import iterations, symbols
from .task import Task, Tasks

_LATENCY_ROUNDS = 3
_LATENCY_SHARE = 0.3
_LONG_US = 30_000.0
_REMEMBERED = {p.WRONG_RESULT, p.TIMEOUT, p.CRASH, p.OUT_OF_MEMORY}  # not tried again with this rule version
_PACKAGES = ("apache-tvm", "apache-tvm-ffi")


@dataclass(frozen=True)
class TuneOptions:
    """Everything a run needs besides tasks and target."""

    model: str  # only a name
    budget_s: float
    effort: Effort
    directory: Path  # records are written here
    read: tuple[Path, ...]  # directories in look-up order
    threads: int
    memory_bytes: int
    l3_bytes: int = 0
    seed: int = 0
    trials: int | None = None
    timeout_s: float = 20.0
    modules: tuple[str, ...] = ()
    vector_math: bool = True


class Tuner:
    """Runs once. After an interruption `result` still says what was reached."""

    def __init__(
        self, tasks: Tasks, target: Target, fingerprint: Fingerprint, options: TuneOptions, progress: Progress
    ) -> None:
        self._tasks = tasks
        self._target = target
        self._fingerprint = fingerprint
        self._options = options
        self._progress = progress
        self._clock = Clock(options.budget_s)
        self._log = TuningLog.open(options.read, fingerprint)
        self._results: dict[str, r.TaskResult] = {}
        self._latency: dict[str, list[float]] = {}
        self._restarts = 0
        self._interrupted = False

    def run(self) -> r.TuneResult:
        """Tune until the budget, the trials or the spaces end.

        `NoValidTrial` when candidates were tried and none could be measured; `KeyboardInterrupt` passes
        through after the worker is gone, what was committed stays.
        """
        if self._options.effort.most and self._tasks.tasks:
            o = self._options
            lab_options = LabOptions(o.threads, o.memory_bytes, o.timeout_s, o.modules, o.vector_math)
            worker = make_lab(self._target, lab_options, seed=o.seed, l3_bytes=o.l3_bytes)
            try:
                with worker:
                    self._run(worker)
            except KeyboardInterrupt:
                self._interrupted = True
                raise
            finally:
                self._restarts = worker.restarts
                self._progress.close()
        outcome = self.result
        if (
            outcome.tasks
            and not outcome.measured
            and (outcome.failures or all(t.outcome == r.FAILED for t in outcome.tasks))
        ):
            reasons = "; ".join(dict.fromkeys(t.note for t in outcome.tasks if t.note))
            kinds = ", ".join(f"{n} {k}" for k, n in sorted(outcome.failures.items()))
            raise NoValidTrial(
                "at least one candidate was expected to be measured, but all of them failed "
                f"({kinds or 'no task could be opened'}): {reasons[:400]}: "
                "run `halo-tvm doctor`, or give a larger --budget"
            )
        return outcome

    @property
    def result(self) -> r.TuneResult:
        """What was reached so far."""
        o = self._options
        return r.TuneResult(
            model=o.model,
            target=self._target.key,
            log=str(o.directory),
            tasks=tuple(self._results.get(t.key) or self._untried(t) for t in self._tasks.tasks),
            skipped=tuple({"readable": s.readable, "count": s.count, "reason": s.reason} for s in self._tasks.skipped),
            lookup=self._log.report().to_plain(),
            budget_s=o.budget_s,
            seconds=self._clock.elapsed_s,
            threads=o.threads,
            worker_restarts=self._restarts,
            interrupted=self._interrupted,
        )

    def _run(self, worker: Lab) -> None:
        self._measure_defaults(worker)
        known = [self._shortened(t) for t in self._tasks.tasks if t.key in self._latency]
        waiting = sorted(known, key=self._importance, reverse=True)
        left = None if self._options.trials is None else self._options.trials
        while waiting and self._clock.left_s > 0 and left != 0:
            task, rest = waiting[0], waiting[1:]
            share = self._importance(task) / sum(map(self._importance, waiting))
            done = self._tune(worker, task, self._clock.slice(self._clock.left_s * share), left)
            left = None if left is None else max(0, left - done)
            waiting = rest

    def _measure_defaults(self, worker: Lab) -> None:
        """Latencies of the defaults, the most work first, for no more than a share of the budget."""
        for task in sorted(self._tasks.tasks, key=_work, reverse=True):
            if self._clock.elapsed_s > _LATENCY_SHARE * self._clock.budget_s and self._latency:
                return
            try:
                self._latency[task.key] = _latencies(worker, task)
            except Failure as failure:
                self._fail(task, f"the default could not be measured: {failure.kind}: {failure}")

    def _shortened(self, task: Task) -> Task:
        """`task` without the sizes that were too long to be timed."""
        kept = task.sizes[: len(self._latency[task.key])]
        total = sum(size.weight for size in kept)
        return replace(task, sizes=tuple(Size(size.dims, size.weight / total) for size in kept))

    def _importance(self, task: Task) -> float:
        """Time a model spends there: call sites times the weighted latency of the default."""
        return task.count * sum(s.weight * us for s, us in zip(task.sizes, self._latency[task.key]))

    def _tune(self, worker: Lab, task: Task, clock: Clock, trials: int | None) -> int:
        """Search, confirm and commit one task; returns the number of candidates tried."""
        self._progress.task(task.readable)
        search = Search(task, worker, self._options.effort, self._progress, self._latency[task.key])
        confirmed: Confirmed | None = None
        try:
            worker.open(task)
            most = self._options.effort.most if trials is None else trials
            confirmed = search.run(self._candidates(task), clock, most)
        except Failure as failure:
            self._fail(task, f"the default failed: {failure.kind}: {failure}", search, clock)
        self._commit(task, search, confirmed)
        if task.key not in self._results:
            self._results[task.key] = self._finished(task, search, confirmed, clock)
        outcome = self._results[task.key]
        self._progress.done(f"{outcome.outcome}: {outcome.note}")
        return search.tally.measured + sum(search.tally.failures.values())

    def _candidates(self, task: Task) -> Candidates:
        rule = task.rule
        self._log.best(task.key, rule.name, rule.version, readable=task.readable)  # counted as hit or miss
        hints = self._decisions(task, self._log.hints(task.key, rule.name, rule.version))
        failed = [f for f in self._log.failed(task.key, rule.name, rule.version) if f.outcome in _REMEMBERED]
        avoid = self._decisions(task, failed)
        return Candidates(
            task.default, task.space, hints, avoid, descend=self._options.effort.descend, seed=self._options.seed
        )

    def _decisions(self, task: Task, records: Sequence[Record]) -> list[object]:
        found = []
        for record in records:
            try:
                found.append(decision_from_plain(task.rule.Decision, record.decision))
            except (ValueError, TypeError) as error:
                self._progress.note(f"a record for {task.readable} is not used: {error}")
        return found

    def _commit(self, task: Task, search: Search, confirmed: Confirmed | None) -> None:
        records = [
            self._record(task, decision, kind, message=message[:500]) for decision, kind, message in search.tally.failed
        ]
        if confirmed is not None and confirmed.is_faster:
            records.append(self._record(task, confirmed.decision, COMMITTED, confirmed=confirmed))
        if records:
            commit(self._options.directory, self._fingerprint, records)

    def _record(
        self, task: Task, decision: object, outcome: str, *, message: str = "", confirmed: Confirmed | None = None
    ) -> Record:
        return Record(
            workload=task.key,
            readable=task.readable,
            rule=task.rule.name,
            rule_version=task.rule.version,
            decision=decision_to_plain(decision),
            outcome=outcome,
            target=self._fingerprint.facts(),
            versions=versions(),
            sizes=task.sizes,
            candidate_us=_rounded(confirmed.candidate_us) if confirmed else (),
            default_us=_rounded(confirmed.default_us) if confirmed else (),
            speedup=round(confirmed.speedup, 4) if confirmed else 0.0,
            speedup_low=round(confirmed.speedup_low, 4) if confirmed else 0.0,
            message=message,
            seed=self._options.seed,
            timestamp=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _finished(self, task: Task, search: Search, confirmed: Confirmed | None, clock: Clock) -> r.TaskResult:
        default = [median(s) for s in confirmed.default_us] if confirmed else self._latency[task.key]
        if confirmed and confirmed.is_faster:
            outcome, note = r.IMPROVED, f"{confirmed.speedup:.3f}x, at least {confirmed.speedup_low:.3f}x"
        elif confirmed:
            outcome = r.KEPT
            bound = f"lower bound {confirmed.speedup_low:.3f}"
            note = f"the best candidate's speed-up of {confirmed.speedup:.3f}x is not certain ({bound})"
        else:
            outcome, note = r.KEPT, f"none of {search.tally.measured} candidates was faster"
        if not search.tally.measured and search.tally.failures:
            outcome, note = r.FAILED, f"all candidates failed, the first with {search.tally.failed[0][2][:200]}"
        best = [median(s) for s in confirmed.candidate_us] if outcome == r.IMPROVED else default
        decision = confirmed.decision if outcome == r.IMPROVED else task.default
        return self._result(task, outcome, note, search, clock, default, best, decision, confirmed)

    def _fail(self, task: Task, note: str, search: Search | None = None, clock: Clock | None = None) -> None:
        times = self._latency.get(task.key, ())
        self._results[task.key] = self._result(task, r.FAILED, note, search, clock, times, times, task.default, None)

    def _untried(self, task: Task) -> r.TaskResult:
        times = self._latency.get(task.key, ())
        note = "nothing is measured at this effort" if not self._options.effort.most else "the budget ended before it"
        return self._result(task, r.UNTRIED, note, None, None, times, times, task.default, None)

    def _result(
        self, task: Task, outcome: str, note: str, search: Search | None, clock: Clock | None,
        default_us: Sequence[float], best_us: Sequence[float], decision: object, confirmed: Confirmed | None,
    ) -> r.TaskResult:  # fmt: skip
        improved = outcome == r.IMPROVED and confirmed is not None
        return r.TaskResult(
            key=task.key,
            readable=task.readable,
            rule=task.rule.name,
            count=task.count,
            outcome=outcome,
            sizes=tuple(s.dims for s in task.sizes[: len(default_us)]),
            default_us=tuple(default_us),
            best_us=tuple(best_us),
            decision=decision_to_plain(decision),
            speedup=confirmed.speedup if improved else 1.0,
            speedup_low=confirmed.speedup_low if improved else 1.0,
            speedup_high=confirmed.speedup_high if improved else 1.0,
            measured=search.tally.measured if search else 0,
            failures=dict(search.tally.failures) if search else {},
            seconds=clock.elapsed_s if clock else 0.0,
            note=note,
        )


def _latencies(worker: Lab, task: Task) -> list[float]:
    """Medians of the default at the sizes of `task`, from the lightest to the first that takes long.

    Beyond that a kernel is bound by arithmetic, and a larger size says nothing new.
    """
    medians = [worker.open(task, compare=False)]
    for size in range(len(task.sizes)):
        samples = worker.race([p.DEFAULT_ID], size, _LATENCY_ROUNDS, medians[-1])
        medians.append(median(samples[p.DEFAULT_ID]))
        if medians[-1] > _LONG_US:
            break
    return medians[1:]


def _work(task: Task) -> int:
    """A first guess at what a task matters: how often its statements run in a model."""
    names = symbols(task.func)
    return task.count * sum(iterations(task.func, dict(zip(names, size.dims))) for size in task.sizes)


def versions() -> dict[str, str]:
    """The releases a record was made with."""
    from .. import __version__

    return {"halo_tvm": __version__} | {name: importlib.metadata.version(name) for name in _PACKAGES}


def _rounded(samples: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(us, 3) for us in row) for row in samples)
