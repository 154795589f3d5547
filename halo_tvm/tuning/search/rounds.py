"""The search for one task: batches of candidates race the default and each other, the best is confirmed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...report.parts import TaskStage
from ..budget import Clock
from ..measure import protocol as p
from ..measure.lab import Failure, Lab
from ..progress import Progress
from ..task import Task
from .agenda import LEAST_GAIN, Agenda, Stage
from .board import Board
from .confirm import confirm
from .descent import Descent
from .efforts import DESCENT, METASCHEDULE, RANKED, Effort
from .outcome import BUDGET, MOST, ROOFLINE, TRIALS, Confirmed, Tally, Trial
from .race import Samples, halving, rung_s
from .ranked import Ranked
from .ranking import Ranking
from .records import FromRecords
from .roofline import headroom
from .settling import Settling

START = "start"  # the stage of a spoiled start's own trial
_SLOWER = 1 / 3  # about the speed-up of what is not worth timing
_HOPELESS = 0.9  # of the best so far: a first rung that shows nothing faster ends the race
_FROM_OUTSIDE = {p.CRASH, p.TIMEOUT, p.OUT_OF_MEMORY}  # may befall whoever is measured: forgiven once in a task
_CONFIRMED_AT_MOST = 3  # candidates that fail in the form that ships before the task gives up


class Search:
    """One task in a lab, batch by batch: `enter`, `step` while it answers True, `confirm`.

    What it saw is in `tally`, `stages` and `trials` (those not collected yet); `ended` says why it ended.
    """

    def __init__(
        self,
        task: Task,
        lab: Lab,
        effort: Effort,
        progress: Progress,
        default_us: Sequence[float],
        *,
        board: Board | None = None,
        ranking: Ranking | None = None,
        records: Sequence[object] = (),
        again: Sequence[object] = (),
        start: object | None = None,
        roofline_us: Sequence[float] = (),
        seed: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task = task
        self._lab = lab
        self._effort = effort
        self._progress = progress
        self._default_us = list(default_us)
        self._weights = [s.weight for s in task.sizes]
        self.board = board or Board(task.default, task.space, start=start)
        self.ranking = ranking or Ranking(self.board, task.key, None, None)
        # Tried before any stage: a spoiled start, and what a run that is resumed had found.
        self._first = {**({} if start is None else {start: START}), **dict.fromkeys(again, FromRecords.name)}
        made: dict[str, Stage] = {
            FromRecords.name: FromRecords(records),
            RANKED: Ranked(self.ranking, effort.epsilon, seed),
            DESCENT: Descent(self.board, self.ranking),
        }
        if METASCHEDULE in effort.stages:
            from .metaschedule import MetaSchedule  # imports much, which no other search needs

            made[METASCHEDULE] = MetaSchedule(self.board.space, seed)
        stages = [made[name] for name in effort.stages if name in made]
        room = headroom(self._default_us, roofline_us, self._weights)
        self._agenda = Agenda(stages, self.board, self.ranking, effort, room)
        self._now = now
        self._ahead: dict[object, int] = {}  # ordered before the last race: decision -> id
        self._racing: list[int] = []  # the batch in work
        self._best_id: int | None = p.DEFAULT_ID if start is None else None
        self._by: dict[object, str] = {}  # decision -> the stage that proposed it
        full_rounds = effort.rungs[:2][-1].rounds
        self._settling = Settling(self.board, task.default, self._default_us, self._weights, full_rounds)
        self._entered = False
        self._is_forgiven = False
        self.tally = Tally()
        self.trials: list[Trial] = []
        self.stages: dict[str, TaskStage] = {}

    def run(self, clock: Clock, most: int | None = None) -> Confirmed | None:
        """The confirmed best of `most` candidates (it may not be faster), or None when the default was never beaten.

        Ends for the reasons in `ended`; part of the clock is kept to confirm. Raises `Failure` when the
        default itself fails.
        """
        self.enter()
        while self.step(clock, None if most is None else most - self.tally.tried):
            pass
        return self.confirm()

    def enter(self) -> None:
        """The task becomes the lab's open one."""
        self._entered = True
        try:
            self._lab.open(self.task)
        except Failure as failure:
            self._forgive(failure)

    def leave(self) -> None:
        """Another task's turn: nothing of this one stays in the lab. The best is built again when it is needed."""
        if self._entered:
            held = [*self._ahead.values(), *self._racing, *([self._best_id] if self._best_id else [])]
            if held:
                self._lab.drop(held)
        self._ahead.clear()
        self._racing = []
        self._best_id = p.DEFAULT_ID if self.board.best == self.task.default else None
        self._entered = False

    @property
    def ended(self) -> str:
        """Why the search ended: one of `outcome`; "" while it goes on."""
        return self._agenda.ended

    def end(self, reason: str) -> None:
        """The search ends, unless it has: its best may be confirmed."""
        self._agenda.end(reason)

    @property
    def gain(self) -> float:
        """By how much what was not tried is thought to beat the best, as a logarithm; 0 when the search has ended."""
        return 0.0 if self.ended else self.expected

    @property
    def expected(self) -> float:
        """The same, whether it has ended or not."""
        return self._agenda.gain

    @property
    def confirm_s(self) -> float:
        """About how long a confirmation takes; nothing is to be confirmed before something is better."""
        return rung_s(1, self._effort.confirm_rounds, self._default_us) if self.board.beats_default else 0.0

    def step(self, clock: Clock, most: int | None = None) -> bool:
        """Try one more batch; False when the search has ended. `most`: candidates that may still be tried."""
        room = min(self._effort.most - self.tally.tried - self.board.known, math.inf if most is None else most)
        if room <= 0:
            self.end(MOST if most is None or most > 0 else TRIALS)
        if clock.left_s <= self.confirm_s:
            self.end(BUDGET)
        if self._agenda.is_at_roofline:
            self.end(ROOFLINE)
        if self.ended:
            return False
        size = int(min(self._effort.batch, room))
        began, stage, wanted = self._now(), self._agenda.stage, []
        while stage is not None:
            wanted = stage.propose(self.board, 2 * size)
            if wanted or self._first:
                break
            self._agenda.proposes_nothing()
            stage = self._agenda.stage
        if stage is None:
            return False
        batch = self._choose(wanted, size)
        try:
            self._batch(stage, batch, size, clock, began)
        except Failure as failure:
            self._forgive(failure)
            failed = {decision for decision, _, _ in self.tally.failed}
            for decision in batch:
                if decision not in self.board.speedups and decision not in failed:
                    self.board.reopen(decision)
                    if self._by[decision] != stage.name:
                        self._first[decision] = self._by[decision]
        return not self.ended

    def confirm(self) -> Confirmed | None:
        """Fresh paired rounds of the default and the best, in the form that ships; the next best when that fails.

        None when nothing is better than the default.
        """
        if self._ahead:
            self._lab.drop(list(self._ahead.values()))
            self._ahead.clear()
        for _ in range(_CONFIRMED_AT_MOST):
            if not self.board.beats_default:
                break
            try:
                return self._confirmed()
            except Failure as failure:
                if failure.blamed is None or failure.blamed != self._best_id:
                    self._forgive(failure)
                else:
                    self._lose_best(failure)
        return None

    # One batch

    def _forgive(self, failure: Failure) -> None:
        """The process that measures died, but no candidate is to blame: once that may have come from outside."""
        if self._is_forgiven or failure.kind not in _FROM_OUTSIDE:
            raise failure
        self._is_forgiven = True
        self.leave()
        self.enter()

    def _batch(self, stage: Stage, batch: list[object], size: int, clock: Clock, began: float) -> None:
        name = stage.name
        self._progress.stage(name)
        failed, tried, before = sum(self.tally.failures.values()), self.tally.tried, self.board.best_speedup
        scores = {d: self.ranking.score(d) for d in batch}
        owner = {d: self._first.pop(d, name) for d in batch}
        self._by.update(owner)
        ids = self._take(self._order(batch), owner, clock)
        if ids:
            self._order_ahead(stage, size)
        best = self.board.best
        results = self._race(ids, owner, clock)
        known = [(d, scores.get(d), math.log(s)) for d, s in results]
        self.ranking.learn(known)
        if RANKED in self._effort.stages:
            self.ranking.refit()
        # Over what the old best is now known to be; a change within the noise is no reason to go on.
        beaten = self.board.speedups.get(best, before)
        won = self.board.best in batch and self.board.best_speedup > (1.0 + LEAST_GAIN) * beaten
        row = self.stages.get(name) or TaskStage(name, 0, 0, 0.0, before, before)
        self.stages[name] = replace(
            row,
            tried=row.tried + self.tally.tried - tried,
            failed=row.failed + sum(self.tally.failures.values()) - failed,
            seconds=row.seconds + self._now() - began,
            after=self.board.best_speedup,
        )
        self._agenda.ran(won)

    def _choose(self, wanted: list[object], size: int) -> list[object]:
        """The batch: what is being built already and still wanted, then the most wanted; the rest is dropped."""
        wanted = [d for d in wanted if d not in self._first]
        first = [d for d in wanted[:size] if d in self._ahead]
        late = [d for d in wanted[size:] if d in self._ahead]
        fresh = [d for d in wanted[:size] if d not in self._ahead]
        batch = [*self._first, *first, *late, *fresh][:size]
        stale = [self._ahead.pop(d) for d in list(self._ahead) if d not in batch]
        if stale:
            self._lab.drop(stale)
        return batch

    def _order(self, batch: Sequence[object]) -> dict[int, object]:
        """Ids of a batch, the best so far with it where the lab does not have it."""
        new = [d for d in batch if d not in self._ahead]
        lacks_best = self._best_id is None and self.board.best_speedup > 0
        if lacks_best:
            (self._best_id,) = self._lab.order([self.board.best])
        ids = dict(zip(new, self._lab.order(new) if new else ()))
        ids.update({d: self._ahead.pop(d) for d in batch if d in self._ahead})
        self._racing = list(ids.values())
        for decision in batch:
            self.board.close(decision)
        if lacks_best:
            try:
                self._take_best()
            except Failure as failure:  # the next best stands
                if failure.blamed is None:
                    raise
                self._lose_best(failure)
        return {ids[d]: d for d in batch}

    def _take_best(self) -> None:
        """The best, which was ordered, is in the lab again; one slow call is no reason to lose what was measured."""
        try:
            self._lab.take(self._best_id)
        except Failure as failure:
            if failure.kind != p.SLOWER:
                raise
            (self._best_id,) = self._lab.order([self.board.best])
            self._lab.take(self._best_id)

    def _lose_best(self, failure: Failure) -> None:
        """The best does not work any more; the next best stands, and is built when it is needed."""
        if self._best_id:
            self._lab.drop([self._best_id])
        if failure.kind == p.SLOWER:
            self.board.fails(self.board.best)
        else:
            self._fail(self.board.best, self._by.get(self.board.best, ""), failure)
        self._best_id = p.DEFAULT_ID if self.board.best == self.task.default else None

    def _order_ahead(self, stage: Stage, size: int) -> None:
        """Begin to build what the next batch would be now: the race leaves builders idle."""
        ahead = stage.propose(self.board, size)
        self._ahead = dict(zip(ahead, self._lab.order(ahead) if ahead else ()))

    def _take(self, ordered: dict[int, object], owner: dict[object, str], clock: Clock) -> dict[int, object]:
        """Those of a batch that were built, checked and run once."""
        taken: dict[int, object] = {}
        waiting = list(ordered)
        while waiting:
            if taken and clock.left_s <= self.confirm_s:
                self._lab.drop(waiting)
                for i in waiting:
                    self.board.reopen(ordered[i])
                break
            i = waiting.pop(0)
            decision = ordered[i]
            try:
                self._lab.take(i)
            except Failure as failure:
                if failure.blamed is None:
                    raise  # the task itself could not be opened again
                if failure.kind == p.SLOWER:
                    self._measured(decision, owner[decision], _SLOWER, str(failure))
                    self.ranking.learn([(decision, None, math.log(_SLOWER))])
                else:
                    self._fail(decision, owner[decision], failure)
                continue
            taken[i] = decision
        return taken

    def _race(self, ids: dict[int, object], owner: dict[object, str], clock: Clock) -> list[tuple[object, float]]:
        """Halve a batch, and let its best replace the best so far. Returns the measured speed-ups."""
        if not ids:
            return []
        standing = self._best_id or None  # the default runs in any case
        outcome = halving(
            self._lab,
            list(ids),
            standing,
            self._effort.rungs,
            self._default_us,
            self._weights,
            lambda seconds: clock.left_s >= seconds,
            hopeless=_HOPELESS * self._settling.reached,
        )
        if not outcome.samples and not outcome.failed:
            self.end(BUDGET)
        results: list[tuple[object, float]] = []
        for i, decision in ids.items():
            if i in outcome.failed:
                self._fail(decision, owner[decision], outcome.failed[i])
            elif i in outcome.samples:
                speedup = outcome.samples[i].speedup(self._weights)
                self._measured(decision, owner[decision], speedup, "", outcome.samples[i])
                results.append((decision, speedup))
            else:
                self.board.reopen(decision)  # there was no time to race it
        if standing in outcome.failed:
            self._lose_best(outcome.failed[standing])
            standing = None
        before, before_id = self.board.best, self._best_id
        self._settling.settle(outcome, ids, standing)
        if self.board.best != before:
            by_decision = {decision: i for i, decision in ids.items()}
            is_default = self.board.best == self.task.default
            # A best of earlier batches is built again when it is needed.
            self._best_id = p.DEFAULT_ID if is_default else by_decision.get(self.board.best)
        self._racing = []
        gone = [i for i in ids if i != self._best_id and i not in outcome.failed]
        self._lab.drop(gone if self._best_id == before_id or not before_id else [*gone, before_id])
        for _ in results:
            self._tell(True)
        return results

    def _measured(
        self, decision: object, stage: str, speedup: float, message: str, samples: Samples | None = None
    ) -> None:
        self.tally.measured += 1
        self._settling.measured(decision, speedup, samples)
        self.trials.append(Trial(decision, stage, None, speedup, message, samples))

    def _fail(self, decision: object, stage: str, failure: Failure) -> None:
        self.tally.failures[failure.kind] += 1
        self.tally.failed.append((decision, failure.kind, str(failure)))
        self.board.fails(decision)
        self.trials.append(Trial(decision, stage, failure.kind, message=str(failure)))
        self._tell(False, failure.kind)

    def _tell(self, ok: bool, reason: str = "") -> None:
        speedup = self.board.best_speedup or 1.0
        best_us = sum(w * us for w, us in zip(self._weights, self._default_us)) / sum(self._weights) / speedup
        self._progress.trial(self.task.key, ok, reason, best_us, speedup)

    def _confirmed(self) -> Confirmed:
        if not self._best_id:
            (self._best_id,) = self._lab.order([self.board.best])
            self._take_best()
        self._progress.stage("confirming")
        return confirm(
            self._lab,
            self._best_id,
            self.board.best,
            default_us=self._default_us,
            weights=self._weights,
            rounds=self._effort.confirm_rounds,
            stage=self._by.get(self.board.best, ""),
        )
