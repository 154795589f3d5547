"""`--engine metaschedule`: a tuning run whose candidates MetaSchedule chooses; measured and committed as ours are."""

from __future__ import annotations

import importlib.metadata
import logging
import math
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import tvm
from tvm.s_tir import meta_schedule as ms

from ...errors import NoValidTrial
from ...lookup import fingerprint_of
from ...records.decision import decision_to_plain
from ...records.import_metaschedule import STAGE
from ...records.log import TuningLog, commit
from ...records.record import IMPROVED, MEASURED, Fingerprint, Record, Size
from ...records.workload import family_of
from ...targets import Target, read_host
from .. import result as r
from ..budget import Clock
from ..measure import make_lab
from ..measure import protocol as p
from ..measure.lab import Failure, Lab, LabOptions
from ..progress import Progress
from ..statistics import median_and_interval, speedups_by_round
from ..task import Task, Tasks
from .proposals import Proposal, Trial, geometric, proposals

if TYPE_CHECKING:
    from ..tuner import TuneOptions

_LOGGER = logging.getLogger(__name__)
_CONFIRM_ROUNDS = 20
_LATENCY_ROUNDS = 3
_LATENCY_SHARE = 0.3
_LONG_US = 30_000.0  # larger sizes say nothing new
_TURN_OVERHEAD_S = 0.004
_MEMORY_BYTES = 4 << 30
_PACKAGES = ("apache-tvm", "apache-tvm-ffi")


@dataclass(frozen=True)
class _Confirmed:
    """A proposal against the default in paired rounds. Rows of samples are sizes, in us."""

    decision: object
    default_us: tuple[tuple[float, ...], ...]
    candidate_us: tuple[tuple[float, ...], ...]
    speedup: float
    speedup_low: float
    speedup_high: float


@dataclass
class _Seen:
    """What a search came to so far."""

    made: list[Proposal] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    best: Proposal | None = None

    @property
    def measured(self) -> int:
        return sum(not one.failed for one in self.made)


def search(
    task: Task, target: Target, *, trials: int, budget_s: float, seed: int, strategy: str = "evolutionary",
    lab: Lab | None = None,
) -> Iterator[Trial]:  # fmt: skip
    """Every candidate that MetaSchedule asks for, in order; seconds count from before the first is proposed.

    The lab is one of its own unless it is given. Measuring the default, and starting
    the lab, is not counted: our own search does the same first. Raises `Failure` when the default fails.
    """
    if lab is None:
        options = LabOptions(target.cores, _MEMORY_BYTES)
        with make_lab(target, options, seed=seed, l3_bytes=read_host().l3_bytes) as own:
            yield from search(task, target, trials=trials, budget_s=budget_s, seed=seed, strategy=strategy, lab=own)
        return
    default_us = _default_times(lab, task)
    task = _shortened(task, default_us)
    lab.open(task)
    clock = Clock(budget_s)
    weights = [size.weight for size in task.sizes]
    asked = proposals(task, target, lab, default_us, clock, trials=trials, seed=seed, strategy=strategy)
    for proposal in asked:
        yield Trial(proposal.decision, proposal.us(weights), clock.elapsed_s)


def tune_tasks(
    tasks: Tasks,
    target: Target,
    options: TuneOptions,
    progress: Progress,
    lab: Lab | None = None,
    fingerprint: Fingerprint | None = None,
) -> r.TuneResult:
    """Tune `tasks` within the budget; winners are committed, every trial is kept beside them.

    `lab` and the `fingerprint` of its machine are given where that is not this one.
    Raises `NoValidTrial` when candidates were tried and none could be measured. `KeyboardInterrupt` passes
    through after what was found is committed, with a summary as a note of `progress`.
    """
    run = _Run(tasks, target, options, progress, lab, fingerprint or fingerprint_of(target))
    try:
        return run.run()
    except KeyboardInterrupt:
        run.interrupted = True
        progress.note(run.result.summary())
        raise


class _Run:
    """One run; `result` says at any time what was reached."""

    def __init__(
        self, tasks: Tasks, target: Target, options: TuneOptions, progress: Progress, lab: Lab | None,
        fingerprint: Fingerprint,
    ) -> None:  # fmt: skip
        self._tasks, self._target, self._options, self._progress = tasks, target, options, progress
        self._lab = lab
        self._fingerprint = fingerprint
        self._log = TuningLog.open(options.read, self._fingerprint)
        self._clock = Clock(options.budget_s)
        self._latency: dict[str, list[float]] = {}
        self._results: dict[str, r.TaskResult] = {}
        self._restarts = 0
        self._id = f"metaschedule-{uuid.uuid4().hex[:12]}"
        self.interrupted = False

    def run(self) -> r.TuneResult:
        if self._tasks.tasks and self._options.effort.most:
            o = self._options
            how = LabOptions(o.threads, o.memory_bytes, o.timeout_s, o.modules, o.vector_math, cold_cache=o.cold_cache)
            lab = self._lab or make_lab(self._target, how, seed=o.seed, l3_bytes=o.l3_bytes)
            try:
                with lab:
                    self._tune_all(lab)
            finally:
                self._restarts = max(0, lab.restarts)
        outcome = self.result
        if outcome.tasks and not outcome.measured and any(t.outcome == r.FAILED for t in outcome.tasks):
            kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(outcome.failures.items()))
            reasons = "; ".join(dict.fromkeys(t.note for t in outcome.tasks if t.outcome == r.FAILED))
            raise NoValidTrial(
                "at least one candidate was expected to be measured, but all of them failed "
                f"({kinds or 'no task could be opened'}): {reasons[:400]}: "
                "run `halo-tvm doctor`, or give a larger --budget"
            )
        return outcome

    @property
    def result(self) -> r.TuneResult:
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
            interrupted=self.interrupted,
            engine="metaschedule",
            run=self._id,
        )

    def _tune_all(self, lab: Lab) -> None:
        self._progress.stage("defaults")
        for task in self._tasks.tasks:
            if self._clock.elapsed_s > _LATENCY_SHARE * self._clock.budget_s and self._latency:
                break
            try:
                self._latency[task.key] = _default_times(lab, task)
            except Failure as failure:
                note = f"the default could not be measured: {failure.kind}: {failure}"
                self._results[task.key] = self._empty(task, r.FAILED, note)
        waiting = [t for t in self._tasks.tasks if t.key in self._latency]
        waiting.sort(key=self._importance, reverse=True)
        left = self._options.trials if self._options.trials is not None else math.inf
        self._progress.stage(STAGE)
        while waiting and self._clock.left_s > 0 and left > 0:
            task = waiting[0]
            share = self._importance(task) / sum(map(self._importance, waiting))
            most = int(min(left, self._options.effort.most))
            left -= self._tune(lab, task, self._clock.slice(self._clock.left_s * share), most)
            waiting = waiting[1:]

    def _importance(self, task: Task) -> float:
        """Time a model spends there."""
        return task.count * sum(s.weight * us for s, us in zip(task.sizes, self._latency[task.key]))

    def _tune(self, lab: Lab, whole: Task, clock: Clock, most: int) -> int:
        """Search, confirm and commit one task; returns the number of candidates tried."""
        default_us = self._latency[whole.key]
        task, seen = _shortened(whole, default_us), _Seen()
        confirmed: _Confirmed | None = None
        self._progress.begin(task.key, task.readable)
        note = ""
        try:
            lab.open(task)
            self._search(lab, task, clock, most, seen)
            confirmed = self._confirm(lab, task, seen)
        except Failure as failure:
            note = f"the default failed: {failure.kind}: {failure}"
        except KeyboardInterrupt:
            self._results[task.key] = replace(
                self._empty(task, r.UNTRIED, "interrupted"), measured=seen.measured, failures=dict(seen.failures)
            )
            raise
        finally:
            self._commit(task, seen, confirmed)
        self._results[task.key] = self._finished(task, seen, confirmed, clock, note)
        outcome = self._results[task.key]
        self._progress.ended(task.key, f"{outcome.outcome}: {outcome.note}")
        return len(seen.made)

    def _search(self, lab: Lab, task: Task, clock: Clock, most: int, seen: _Seen) -> None:
        o, default_us = self._options, self._latency[task.key]
        weights = [size.weight for size in task.sizes]
        start_us = geometric(default_us, weights)
        # Confirming comes out of the same budget.
        reserve_s = 2 * _CONFIRM_ROUNDS * sum(us * 1e-6 + _TURN_OVERHEAD_S for us in default_us)
        inner = clock.slice(max(0.5 * clock.left_s, clock.left_s - reserve_s))
        facts = {
            "target": self._fingerprint.facts(),
            "versions": _versions(),
            "seed": o.seed,
            "run": self._id,
            "sizes": [{"dims": list(size.dims), "weight": size.weight} for size in task.sizes],
            "default_us": start_us,
        }
        for one in proposals(task, self._target, lab, default_us, inner, trials=most, seed=o.seed, facts=facts):
            seen.made.append(one)
            if one.failed:
                seen.failures[one.kind] += 1
            elif one.us(weights) < (seen.best.us(weights) if seen.best else math.inf):
                seen.best = one
            best_us = seen.best.us(weights) if seen.best else start_us
            self._progress.trial(
                task.key, not one.failed, "" if not one.failed else one.kind, best_us, max(1.0, start_us / best_us)
            )

    def _confirm(self, lab: Lab, task: Task, seen: _Seen) -> _Confirmed | None:
        """Fresh paired rounds of the default and the best; None when that is the default, or fails now."""
        if seen.best is None or seen.best.decision == task.default:
            return None
        candidate = seen.best.candidate
        pair = (p.DEFAULT_ID, candidate)
        try:
            lab.final(candidate)
            samples = [lab.race(pair, size, _CONFIRM_ROUNDS, us) for size, us in enumerate(self._latency[task.key])]
        except Failure as failure:
            if failure.blamed != candidate:
                raise
            seen.failures[failure.kind] += 1
            at = seen.made.index(seen.best)
            seen.made[at] = replace(seen.best, times_us=(), samples=(), kind=failure.kind, message=str(failure))
            return None
        default = tuple(tuple(s[p.DEFAULT_ID]) for s in samples)
        measured = tuple(tuple(s[candidate]) for s in samples)
        by_round = speedups_by_round(default, measured, [size.weight for size in task.sizes])
        return _Confirmed(seen.best.decision, default, measured, *median_and_interval(by_round))

    def _commit(self, task: Task, seen: _Seen, confirmed: _Confirmed | None) -> None:
        family, extents = family_of(task.func)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")

        def record(decision: object, outcome: str, **more: object) -> Record:
            return Record(
                workload=task.key,
                readable=task.readable,
                rule=task.rule.name,
                rule_version=task.rule.version,
                decision=decision_to_plain(decision),
                outcome=outcome,
                target=self._fingerprint.facts(),
                versions=_versions(),
                sizes=task.sizes,
                seed=self._options.seed,
                timestamp=now,
                family=family,
                extents=extents,
                stage=STAGE,
                run=self._id,
                **more,
            )

        weights = [size.weight for size in task.sizes]
        start_us = geometric(self._latency[task.key], weights)
        records = []
        for one in seen.made:
            if one.failed:
                records.append(record(one.decision, one.kind, message=one.message[:500]))
            elif one.samples:
                speedup = round(start_us / one.us(weights), 4)
                records.append(
                    record(
                        one.decision,
                        MEASURED,
                        candidate_us=_rounded(one.samples),
                        default_us=_rounded(one.default_samples),
                        speedup=speedup,
                    )
                )
        if confirmed is not None and confirmed.speedup_low > 1.0:
            records.append(
                record(
                    confirmed.decision,
                    IMPROVED,
                    candidate_us=_rounded(confirmed.candidate_us),
                    default_us=_rounded(confirmed.default_us),
                    speedup=round(confirmed.speedup, 4),
                    speedup_low=round(confirmed.speedup_low, 4),
                )
            )
        if records:
            commit(self._options.directory, self._fingerprint, records)
            self._keep_traces(task, seen)

    def _keep_traces(self, task: Task, seen: _Seen) -> None:
        """MetaSchedule's own database of the run, for its tools: beside our records, of the real workload."""
        folder = Path(self._options.directory) / self._fingerprint.key / "metaschedule" / self._id
        folder.mkdir(parents=True, exist_ok=True)
        database = ms.database.JSONDatabase(work_dir=str(folder))
        workload = database.commit_workload(tvm.IRModule({"main": task.func.with_attr("global_symbol", "main")}))
        weights = [size.weight for size in task.sizes]
        for one in seen.made:
            if one.samples:
                seconds = [one.us(weights) * 1e-6]
                database.commit_tuning_record(
                    ms.database.TuningRecord(one.trace, workload, seconds, self._target.tvm, None)
                )

    def _finished(self, task: Task, seen: _Seen, confirmed: _Confirmed | None, clock: Clock, note: str) -> r.TaskResult:
        default = [median(s) for s in confirmed.default_us] if confirmed else self._latency[task.key]
        better = confirmed is not None and confirmed.speedup_low > 1.0
        if note:
            outcome = r.FAILED
        elif better:
            outcome, note = r.IMPROVED, f"{confirmed.speedup:.3f}x, at least {confirmed.speedup_low:.3f}x"
        elif not seen.measured and seen.made:
            first = next(one for one in seen.made if one.failed)
            outcome, note = r.FAILED, f"all candidates failed, the first with {first.kind}: {first.message[:200]}"
        elif confirmed is not None:
            bound = f"lower bound {confirmed.speedup_low:.3f}"
            outcome, note = r.KEPT, f"the best candidate's {confirmed.speedup:.3f}x is not certain ({bound})"
        else:
            outcome, note = r.KEPT, f"none of {seen.measured} candidates was faster"
        speedup = confirmed.speedup if better else 1.0
        stage = r.TaskStage(STAGE, len(seen.made), len(seen.made) - seen.measured, clock.elapsed_s, 1.0, speedup)
        return replace(
            self._empty(task, outcome, note),
            default_us=tuple(default),
            best_us=tuple(median(s) for s in confirmed.candidate_us) if better else tuple(default),
            decision=decision_to_plain(confirmed.decision if better else task.default),
            speedup=speedup,
            speedup_low=confirmed.speedup_low if better else 1.0,
            speedup_high=confirmed.speedup_high if better else 1.0,
            measured=seen.measured,
            failures=dict(seen.failures),
            seconds=clock.elapsed_s,
            stages=(stage,),
            stage=STAGE if better else "",
            ended="budget" if clock.left_s <= 0 else "trials or space",
        )

    def _untried(self, task: Task) -> r.TaskResult:
        return self._empty(task, r.UNTRIED, "the budget ended before it")

    def _empty(self, task: Task, outcome: str, note: str) -> r.TaskResult:
        times = tuple(self._latency.get(task.key, ()))
        return r.TaskResult(
            key=task.key,
            readable=task.readable,
            rule=task.rule.name,
            count=task.count,
            outcome=outcome,
            sizes=tuple(s.dims for s in task.sizes[: len(times)]),
            default_us=times,
            best_us=times,
            decision=decision_to_plain(task.default),
            speedup=1.0,
            speedup_low=1.0,
            speedup_high=1.0,
            measured=0,
            failures={},
            seconds=0.0,
            note=note,
            weights=tuple(s.weight for s in task.sizes[: len(times)]),
        )


def _default_times(lab: Lab, task: Task) -> list[float]:
    """Medians of the default at the sizes of `task`, from the lightest to the first that takes long."""
    times = [lab.open(task, compare=False)]
    for size in range(len(task.sizes)):
        samples = lab.race([p.DEFAULT_ID], size, _LATENCY_ROUNDS, times[-1])
        times.append(median(samples[p.DEFAULT_ID]))
        if times[-1] > _LONG_US:
            break
    return times[1:]


def _shortened(task: Task, default_us: Sequence[float]) -> Task:
    """`task` without the sizes that were too long to be timed."""
    kept = task.sizes[: len(default_us)]
    total = sum(size.weight for size in kept)
    return replace(task, sizes=tuple(Size(size.dims, size.weight / total) for size in kept))


def _versions() -> dict[str, str]:
    from ... import __version__

    return {"halo_tvm": __version__} | {name: importlib.metadata.version(name) for name in _PACKAGES}


def _rounded(samples: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(us, 3) for us in row) for row in samples)
