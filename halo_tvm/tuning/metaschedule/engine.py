"""`--engine metaschedule`: a tuning run whose candidates MetaSchedule chooses; measured and committed as ours are."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import tvm
from tvm.s_tir import meta_schedule as ms

from ...lookup import fingerprint_of
from ...records.decision import decision_to_plain
from ...records.import_metaschedule import STAGE
from ...records.log import TuningLog, commit
from ...records.record import Fingerprint, Record
from ...report.parts import TaskStage
from ...targets import Target, read_host
from .. import result as r
from ..budget import Clock
from ..defaults import LATENCY_SHARE, importance, latencies, timed_sizes
from ..measure import make_lab
from ..measure.lab import Failure, Lab, LabOptions
from ..options import TuneOptions
from ..progress import Progress
from ..recording import Recorder, versions
from ..search import outcome as found
from ..search.confirm import confirm
from ..search.race import Samples, rung_s
from ..task import Task, Tasks
from .proposals import TOGETHER, Proposal, Trial, geometric, proposals

_MEMORY_BYTES = 4 << 30


@dataclass
class _Seen:
    """What the search of a task came to so far."""

    tally: found.Tally = field(default_factory=found.Tally)
    best: Proposal | None = None


def search(
    task: Task,
    target: Target,
    *,
    trials: int,
    budget_s: float,
    seed: int,
    strategy: str = "evolutionary",
    lab: Lab | None = None,
) -> Iterator[Trial]:
    """Every candidate that MetaSchedule asks for, in order; seconds count from before the first is proposed.

    The lab is one of its own unless it is given. Measuring the default, and starting
    the lab, is not counted: our own search does the same first. Raises `Failure` when the default fails.
    """
    if lab is None:
        options = LabOptions(target.cores, _MEMORY_BYTES)
        with make_lab(target, options, seed=seed, l3_bytes=read_host().l3_bytes) as own:
            yield from search(task, target, trials=trials, budget_s=budget_s, seed=seed, strategy=strategy, lab=own)
        return
    default_us = latencies(lab, task)
    task = timed_sizes(task, default_us)
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
        self,
        tasks: Tasks,
        target: Target,
        options: TuneOptions,
        progress: Progress,
        lab: Lab | None,
        fingerprint: Fingerprint,
    ) -> None:
        self._tasks, self._target, self._options, self._progress = tasks, target, options, progress
        self._lab = lab
        self._fingerprint = fingerprint
        self._log = TuningLog.open(options.read, self._fingerprint)
        self._clock = Clock(options.budget_s)
        self._latency: dict[str, list[float]] = {}
        self._results: dict[str, r.TaskResult] = {}
        self._restarts = 0
        self._id = f"metaschedule-{uuid.uuid4().hex[:12]}"
        self._recorder = Recorder(self._fingerprint, self._id, options.seed)
        self._pending: list[tuple[Task, Record, Proposal | None]] = []
        self._database: ms.database.JSONDatabase | None = None
        self.interrupted = False

    def run(self) -> r.TuneResult:
        if self._tasks.tasks and self._options.effort.most:
            o = self._options
            lab = self._lab or make_lab(self._target, o.lab, seed=o.seed, l3_bytes=o.l3_bytes)
            try:
                with lab:
                    self._tune_all(lab)
            finally:
                self._restarts = max(0, lab.restarts)
        outcome = self.result
        r.refuse_without_trial(outcome)
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
        lab.prepare(self._tasks.tasks)
        for task in self._tasks.tasks:
            if self._clock.elapsed_s > LATENCY_SHARE * self._clock.budget_s and self._latency:
                break
            try:
                self._latency[task.key] = latencies(lab, task)
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
        return importance(task, self._latency[task.key])

    def _tune(self, lab: Lab, whole: Task, clock: Clock, most: int) -> int:
        """Search, confirm and commit one task; returns the number of candidates tried."""
        default_us = self._latency[whole.key]
        task, seen = timed_sizes(whole, default_us), _Seen()
        confirmed: found.Confirmed | None = None
        self._progress.begin(task.key, task.readable)
        note = ""
        try:
            lab.open(task)
            self._search(lab, task, clock, most, seen)
            self._commit()
            confirmed = self._confirm(lab, task, seen)
        except Failure as failure:
            note = f"the default failed: {failure.kind}: {failure}"
        except KeyboardInterrupt:
            self._results[task.key] = replace(
                self._empty(task, r.UNTRIED, "interrupted"),
                measured=seen.tally.measured,
                failures=dict(seen.tally.failures),
            )
            raise
        finally:
            if confirmed is not None and confirmed.is_faster:
                self._pending.append((task, self._recorder.winner(task, confirmed), None))
            self._commit()
        self._results[task.key] = self._finished(task, seen, confirmed, clock, note)
        outcome = self._results[task.key]
        self._progress.ended(task.key, f"{outcome.outcome}: {outcome.note}")
        return seen.tally.tried

    def _search(self, lab: Lab, task: Task, clock: Clock, most: int, seen: _Seen) -> None:
        o, default_us = self._options, self._latency[task.key]
        weights = [size.weight for size in task.sizes]
        start_us = geometric(default_us, weights)
        # Confirming comes out of the same budget.
        reserve_s = rung_s(1, o.effort.confirm_rounds, default_us)
        inner = clock.slice(max(0.5 * clock.left_s, clock.left_s - reserve_s))
        facts = {
            "target": self._fingerprint.facts(),
            "versions": versions(),
            "seed": o.seed,
            "run": self._id,
            "sizes": [{"dims": list(size.dims), "weight": size.weight} for size in task.sizes],
            "default_us": start_us,
        }
        for one in proposals(task, self._target, lab, default_us, inner, trials=most, seed=o.seed, facts=facts):
            if one.failed:
                self._failed(task, seen, one, one.kind, one.message)
            else:
                seen.tally.measured += 1
                if one.us(weights) < (seen.best.us(weights) if seen.best else math.inf):
                    seen.best = one
                if one.samples:
                    samples = Samples([list(us) for us in one.default_samples], [list(us) for us in one.samples])
                    speedup = start_us / one.us(weights)
                    self._note(task, one, found.Trial(one.decision, STAGE, None, speedup, "", samples))
            best_us = seen.best.us(weights) if seen.best else start_us
            self._progress.trial(task.key, not one.failed, one.kind * one.failed, best_us, max(1.0, start_us / best_us))

    def _failed(self, task: Task, seen: _Seen, one: Proposal, kind: str, message: str) -> None:
        seen.tally.failures[kind] += 1
        seen.tally.failed.append((one.decision, kind, message))
        self._note(task, one, found.Trial(one.decision, STAGE, kind, message=message))

    def _confirm(self, lab: Lab, task: Task, seen: _Seen) -> found.Confirmed | None:
        """Fresh paired rounds of the default and the best; None when that is the default, or fails now."""
        if seen.best is None or seen.best.decision == task.default:
            return None
        try:
            return confirm(
                lab,
                seen.best.candidate,
                seen.best.decision,
                default_us=self._latency[task.key],
                weights=[size.weight for size in task.sizes],
                rounds=self._options.effort.confirm_rounds,
                stage=STAGE,
            )
        except Failure as failure:
            if failure.blamed != seen.best.candidate:
                raise
            seen.tally.measured -= 1
            self._failed(task, seen, seen.best, failure.kind, str(failure))
            return None

    def _note(self, task: Task, one: Proposal, trial: found.Trial) -> None:
        """A trial becomes a record at once, for its time; those that raced together are written together."""
        self._pending.append((task, self._recorder.trial(task, trial), one))
        if len(self._pending) >= TOGETHER:
            self._commit()

    def _commit(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            commit(self._options.directory, self._fingerprint, [record for _, record, _ in pending])
            self._keep_traces([(task, one) for task, _, one in pending if one is not None and one.samples])

    def _keep_traces(self, made: Sequence[tuple[Task, Proposal]]) -> None:
        """MetaSchedule's own database of the run, for its tools: beside our records, of the real workloads."""
        if not made:
            return
        if self._database is None:
            folder = Path(self._options.directory) / self._fingerprint.key / "metaschedule" / self._id
            folder.mkdir(parents=True, exist_ok=True)
            self._database = ms.database.JSONDatabase(work_dir=str(folder))
        for task, one in made:
            module = tvm.IRModule({"main": task.func.with_attr("global_symbol", "main")})
            workload = self._database.commit_workload(module)
            seconds = [one.us([size.weight for size in task.sizes]) * 1e-6]
            self._database.commit_tuning_record(
                ms.database.TuningRecord(one.trace, workload, seconds, self._target.tvm, None)
            )

    def _finished(
        self, task: Task, seen: _Seen, confirmed: found.Confirmed | None, clock: Clock, note: str
    ) -> r.TaskResult:
        tally = seen.tally
        default = [median(s) for s in confirmed.default_us] if confirmed else self._latency[task.key]
        better = confirmed is not None and confirmed.is_faster
        if note:
            outcome = r.FAILED
        elif better:
            outcome, note = r.IMPROVED, f"{confirmed.speedup:.3f}x, at least {confirmed.speedup_low:.3f}x"
        elif not tally.measured and tally.failed:
            _, kind, message = tally.failed[0]
            outcome, note = r.FAILED, f"all candidates failed, the first with {kind}: {message[:200]}"
        elif confirmed is not None:
            bound = f"lower bound {confirmed.speedup_low:.3f}"
            outcome, note = r.KEPT, f"the best candidate's {confirmed.speedup:.3f}x is not certain ({bound})"
        else:
            outcome, note = r.KEPT, f"none of {tally.measured} candidates was faster"
        speedup = confirmed.speedup if better else 1.0
        stage = TaskStage(STAGE, tally.tried, sum(tally.failures.values()), clock.elapsed_s, 1.0, speedup)
        return replace(
            self._empty(task, outcome, note),
            default_us=tuple(default),
            best_us=tuple(median(s) for s in confirmed.candidate_us) if better else tuple(default),
            decision=decision_to_plain(confirmed.decision if better else task.default),
            speedup=speedup,
            speedup_low=confirmed.speedup_low if better else 1.0,
            speedup_high=confirmed.speedup_high if better else 1.0,
            measured=tally.measured,
            failures=dict(tally.failures),
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
