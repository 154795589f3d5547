"""A tuning run: batch by batch to the task that promises most, each confirmed and committed as it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from ..ceilings import Peaks, kept_peaks
from ..records.decision import decision_to_plain
from ..records.home import host_profile
from ..records.log import commit
from ..records.record import Fingerprint
from ..report import tuned as r
from ..report.host import describe_host
from ..targets import Target, read_host
from .budget import Clock
from .defaults import LATENCY_SHARE, importance, latencies, timed_sizes, work
from .measure import make_lab
from .measure.lab import Failure, Lab
from .options import TuneOptions
from .progress import Progress
from .recording import Recorder
from .result import lookup_of, refuse_without_trial, why_kept
from .runs import Run, last_unfinished, new_id
from .search.agenda import UNTESTED
from .search.allocation import Prospect, next_task
from .search.outcome import BUDGET, TRIALS, Confirmed
from .search.prepare import Preparation
from .search.roofline import headroom, roofline_us
from .search.rounds import Search
from .task import Task, Tasks
from .withdrawing import lost_again


class Tuner:
    """Runs once. After an interruption `result` still says what was reached."""

    def __init__(
        self,
        tasks: Tasks,
        target: Target,
        fingerprint: Fingerprint,
        options: TuneOptions,
        progress: Progress,
        *,
        lab: Lab | None = None,
        clock: Clock | None = None,
        peaks: Peaks | None = None,
        starts: Mapping[str, object] | None = None,
    ) -> None:
        """`starts`, decisions by workload key, are where searches begin instead of at the default, for studies."""
        self._tasks = tasks
        self._target = target
        self._fingerprint = fingerprint
        self._options = options
        self._effort = options.effort.of_stages(options.stages)
        self._progress = progress
        self._lab = lab
        self._peaks = peaks
        self._starts = starts or {}
        self._results: dict[str, r.TaskResult] = {}
        self._notes: list[str] = []
        resumed = self._resumed()
        key, deciding = fingerprint.key, options.deciding(fingerprint)
        self._saved = resumed or Run(new_id(), options.model, options.source, key, deciding)
        self._is_resumed = resumed is not None
        self._before_s = self._saved.elapsed_s
        self._clock = clock or Clock(options.budget_s)
        self._left = None if options.trials is None else max(0, options.trials - self._saved.trials)
        keys = {t.key for t in tasks.tasks}
        self._results.update({k: t for k, t in self._saved.finished.items() if k in keys})
        progress.goes_on(self._before_s, self._saved.trials, len(self._results))
        self._recorder = Recorder(fingerprint, self._saved.id, options.seed)
        self._preparation = Preparation(
            target,
            fingerprint,
            self._effort,
            options.read,
            seed=options.seed,
            resumed=self._saved.id if resumed else "",
            note=self._note,
        )
        self._latency: dict[str, list[float]] = {}
        self._roofline: dict[str, tuple[float, ...]] = {}
        self._waiting: dict[str, Task] = {}  # neither finished nor failed
        self._searches: dict[str, Search] = {}
        self._seconds: dict[str, float] = {}
        self._lost: dict[str, dict[object, tuple[float, str]]] = {}  # what was withdrawn, by task
        self._restarts = 0
        self._drift: float | None = None
        self._interrupted = False

    def run(self) -> r.TuneResult:
        """Tune until the budget, the trials or the searches end.

        `NoValidTrial` when candidates were tried and none could be measured; `KeyboardInterrupt` passes
        through after the lab is gone, what was measured and committed stays.
        """
        if self._effort.most and self._tasks.tasks:
            o = self._options
            lab = self._lab or make_lab(self._target, o.lab, seed=o.seed, l3_bytes=o.l3_bytes)
            with self._saved.hold(o.directory):
                try:
                    with lab:
                        self._run(lab)
                        self._drift = lab.drift()
                except KeyboardInterrupt:
                    self._interrupted = True
                    raise
                finally:
                    self._restarts = lab.restarts
                    self._save()
                    self._progress.close()
                self._saved.remove(o.directory)  # after what saves it
        outcome = self.result
        refuse_without_trial(outcome)
        return outcome

    @property
    def result(self) -> r.TuneResult:
        """What was reached so far."""
        o = self._options
        ranked = [s.ranking for s in self._searches.values() if s.ranking.correlation is not None]
        pairs = sum(len(one.pairs) for one in ranked)
        return r.TuneResult(
            model=o.model,
            target=self._target.key,
            host=describe_host(),
            log=str(o.directory),
            tasks=tuple(self._results.get(t.key) or self._untried(t) for t in self._tasks.tasks),
            skipped=self._tasks.skipped,
            lookup=lookup_of(self._preparation.log.report()),
            budget_s=o.budget_s,
            seconds=self._before_s + self._clock.elapsed_s,
            threads=o.threads,
            worker_restarts=self._restarts,
            interrupted=self._interrupted,
            resumed=self._is_resumed,
            notes=tuple(self._notes),
            run=self._saved.id,
            rank_correlation=sum(one.correlation * len(one.pairs) for one in ranked) / pairs if pairs else None,
            drift=self._drift,
        )

    # The run

    def _resumed(self) -> Run | None:
        o = self._options
        if not o.resume:
            return None
        return last_unfinished(o.directory, o.model, o.source, self._fingerprint.key, o.deciding(self._fingerprint))

    def _run(self, lab: Lab) -> None:
        self._keep()
        self._progress.stage("defaults")
        self._measure_defaults(lab)
        self._read_peaks()
        current: str | None = None
        while self._waiting and self._left != 0 and self._left_s > self._reserve_s():
            key = next_task([self._prospect(t) for t in self._waiting.values()], current)
            if current is not None and key != current:
                self._searches[current].leave()
            is_new, current = key != current, key
            if not self._turn(lab, self._waiting[key], is_new):
                current = None
        if current is not None:
            self._searches[current].leave()
        reason = TRIALS if self._left == 0 else BUDGET
        begun = [t for t in self._waiting.values() if t.key in self._searches]
        for task in sorted(begun, key=self._reached_us, reverse=True):
            search = self._searches[task.key]
            search.end(reason)
            self._finish(lab, task, enter=True)

    @property
    def _left_s(self) -> float:
        """Of the budget, with what the run that goes on had used before."""
        return max(0.0, self._options.budget_s - self._before_s - self._clock.elapsed_s)

    def _reserve_s(self) -> float:
        """What it takes to confirm what was found and is not confirmed yet."""
        return sum(self._searches[key].confirm_s for key in self._waiting if key in self._searches)

    def _turn(self, lab: Lab, task: Task, is_new: bool) -> bool:
        """One batch of a task; False when it has ended, confirmed or failed."""
        began = self._clock.elapsed_s
        self._progress.begin(task.key, task.readable)
        try:
            if task.key not in self._searches:
                self._searches[task.key] = self._preparation.search(
                    task,
                    lab,
                    self._progress,
                    self._latency[task.key],
                    roofline_us=self._roofline.get(task.key, ()),
                    start=self._starts.get(task.key),
                )
            search = self._searches[task.key]
            if is_new:
                search.enter()
            others = self._reserve_s() - search.confirm_s
            tried = search.tally.tried
            goes_on = search.step(self._clock.slice(max(0.0, self._left_s - others)), self._left)
            self._left = None if self._left is None else max(0, self._left - search.tally.tried + tried)
        except Failure as failure:
            self._fail(task, f"the default failed: {failure.kind}: {failure}")
            self._keep()
            goes_on = False
        else:
            self._seconds[task.key] = self._seconds.get(task.key, 0.0) + self._clock.elapsed_s - began
            self._keep()
            if not goes_on:
                self._finish(lab, task, enter=False)
        return goes_on

    def _finish(self, lab: Lab, task: Task, *, enter: bool) -> None:
        """Confirm the best of a task whose search has ended, and commit it."""
        began = self._clock.elapsed_s
        search = self._searches[task.key]
        confirmed: Confirmed | None = None
        try:
            if search.board.beats_default:
                if enter:
                    search.enter()
                confirmed = search.confirm()
            search.leave()
        except Failure as failure:
            self._fail(task, f"the default failed: {failure.kind}: {failure}")
        else:
            self._seconds[task.key] = self._seconds.get(task.key, 0.0) + self._clock.elapsed_s - began
            records = [self._recorder.winner(task, confirmed)] if confirmed and confirmed.is_faster else []
            self._lost[task.key] = lost_again(self._preparation.standing(task), search.board, confirmed)
            records += [self._recorder.withdrawn(task, d, *why) for d, why in self._lost[task.key].items()]
            if records:
                commit(self._options.directory, self._fingerprint, records)
            self._end(self._finished(task, search, confirmed))
        self._keep()

    # What stays

    def _keep(self) -> None:
        """Trials go to the log, then the run's file says how far it came."""
        records = []
        for search in self._searches.values():
            records += [self._recorder.trial(search.task, trial) for trial in search.trials]
            search.trials = []
        if records:
            commit(self._options.directory, self._fingerprint, records)
        self._saved = replace(
            self._saved,
            elapsed_s=self._before_s + self._clock.elapsed_s,
            trials=self._saved.trials + len(records),
            finished={key: result for key, result in self._results.items() if _is_final(result)},
        )
        self._saved.save(self._options.directory)

    def _save(self) -> None:
        """At the end, whatever it is: the trials of the batch in flight, and what the models learned."""
        if any(search.trials for search in self._searches.values()):
            self._keep()
        self._preparation.save_models(self._options.directory)

    # Defaults, and what they leave to gain

    def _measure_defaults(self, lab: Lab) -> None:
        """Latencies of the defaults, the most work first, for no more than a share of what is left of the budget."""
        until_s = self._clock.elapsed_s + LATENCY_SHARE * self._left_s
        tasks = [t for t in sorted(self._tasks.tasks, key=work, reverse=True) if t.key not in self._results]
        lab.prepare(tasks)
        for task in tasks:
            if self._clock.elapsed_s > until_s and self._latency:
                return
            try:
                self._latency[task.key] = latencies(lab, task)
            except Failure as failure:
                self._fail(task, f"the default could not be measured: {failure.kind}: {failure}")
                continue
            self._waiting[task.key] = timed_sizes(task, self._latency[task.key])

    def _read_peaks(self) -> None:
        """Rooflines from what `doctor --measure` measured here, where it did."""
        peaks = self._peaks
        if self._target.spec.gpu:
            self._note("no task can end at its roofline: ceilings are measured on CPUs only")
        elif peaks is None and self._lab is None:  # another lab may measure anywhere
            peaks, why_not = kept_peaks(host_profile(), read_host(), self._options.threads)
            if why_not:
                self._note(f"no task can end at its roofline: {why_not}")
        cold = self._options.cold_cache
        for task in self._waiting.values():
            least = [roofline_us(task, size.dims, peaks, self._target, cold=cold) for size in task.sizes]
            self._roofline[task.key] = tuple(us for us in least if us is not None)

    def _importance(self, task: Task) -> float:
        return importance(task, self._latency[task.key])

    def _prospect(self, task: Task) -> Prospect:
        search = self._searches.get(task.key)
        if search is not None:
            return Prospect(task.key, self._importance(task), max(1.0, search.board.best_speedup), search.gain)
        weights = [s.weight for s in task.sizes]
        room = headroom(self._latency[task.key], self._roofline.get(task.key, ()), weights)
        return Prospect(task.key, self._importance(task), 1.0, max(0.0, min(UNTESTED, room)))

    def _reached_us(self, task: Task) -> float:
        """Time that confirming a task saves."""
        return self._importance(task) * (1.0 - 1.0 / max(1.0, self._searches[task.key].board.best_speedup))

    # Results

    def _end(self, result: r.TaskResult) -> None:
        self._results[result.key] = result
        self._waiting.pop(result.key, None)
        self._progress.ended(result.key, f"{result.outcome}: {result.note}")

    def _finished(self, task: Task, search: Search, confirmed: Confirmed | None) -> r.TaskResult:
        default = [median(s) for s in confirmed.default_us] if confirmed else self._latency[task.key]
        if confirmed and confirmed.is_faster:
            outcome, note = r.IMPROVED, f"{confirmed.speedup:.3f}x, at least {confirmed.speedup_low:.3f}x"
        else:
            outcome, note = r.KEPT, why_kept(search, confirmed)
        if not search.tally.measured and search.tally.failures:
            outcome, note = r.FAILED, f"all candidates failed, the first with {search.tally.failed[0][2][:200]}"
        best = [median(s) for s in confirmed.candidate_us] if confirmed and outcome == r.IMPROVED else default
        return self._result(task, outcome, note, default, best, confirmed)

    def _fail(self, task: Task, note: str) -> None:
        if task.key in self._searches:
            self._searches[task.key].leave()
        times = self._latency.get(task.key, ())
        self._end(self._result(task, r.FAILED, note, times, times, None))

    def _untried(self, task: Task) -> r.TaskResult:
        times = self._latency.get(task.key, ())
        note = "nothing is measured at this effort"
        if self._effort.most:
            note = "the trials ended before it" if self._left == 0 else "the budget ended before it"
        return self._result(task, r.UNTRIED, note, times, times, None)

    def _result(
        self,
        task: Task,
        outcome: str,
        note: str,
        default_us: Sequence[float],
        best_us: Sequence[float],
        confirmed: Confirmed | None,
    ) -> r.TaskResult:
        search = self._searches.get(task.key)
        won = confirmed if outcome == r.IMPROVED else None
        if not won and set(self._preparation.standing(task)) - set(self._lost.get(task.key, ())):
            note += "; the record of an earlier run stands"
        return r.TaskResult(
            key=task.key,
            readable=task.readable,
            rule=task.rule.name,
            count=task.count,
            outcome=outcome,
            sizes=tuple(s.dims for s in task.sizes[: len(default_us)]),
            default_us=tuple(default_us),
            best_us=tuple(best_us),
            decision=decision_to_plain(won.decision if won else task.default),
            speedup=won.speedup if won else 1.0,
            speedup_low=won.speedup_low if won else 1.0,
            speedup_high=won.speedup_high if won else 1.0,
            measured=search.tally.measured if search else 0,
            failures=dict(search.tally.failures) if search else {},
            seconds=self._seconds.get(task.key, 0.0),
            note=note,
            stages=tuple(search.stages.values()) if search else (),
            predicted_gain=math.expm1(search.expected) if search else 0.0,
            roofline_us=self._roofline.get(task.key, ()),
            stage=won.stage if won else "",
            ended=search.ended if search else "",
            rank_correlation=search.ranking.correlation if search else None,
            weights=tuple(s.weight for s in task.sizes[: len(default_us)]),
        )

    def _note(self, line: str) -> None:
        if line not in self._notes:
            self._notes.append(line)
            self._progress.note(line)


def _is_final(result: r.TaskResult) -> bool:
    """Whether a run that goes on has nothing to do for a task: more time, or another try, may change the others."""
    return result.outcome != r.FAILED and result.ended not in (BUDGET, TRIALS)
