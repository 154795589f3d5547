"""The search for one task: batches of candidates race the default and each other, the best is confirmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from ..budget import Clock
from ..measure import protocol as p
from ..measure.client import Worker
from ..measure.lab import Failure
from ..progress import Progress
from ..statistics import median_and_interval, speedups_by_round
from ..task import Task
from .candidates import Candidates
from .efforts import Effort

_TURN_OVERHEAD_S = 0.004  # pause, and short calls repeated


@dataclass
class Tally:
    """What happened to the candidates of one task."""

    measured: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[object, str, str]] = field(default_factory=list)  # decision, error class, message


@dataclass(frozen=True)
class Confirmed:
    """A candidate against the default in paired rounds. Rows of samples are sizes, in us."""

    decision: object
    default_us: tuple[tuple[float, ...], ...]
    candidate_us: tuple[tuple[float, ...], ...]
    speedup: float
    speedup_low: float
    speedup_high: float

    @property
    def is_faster(self) -> bool:
        return self.speedup_low > 1.0


class Search:
    """One task on one worker. `run` leaves what it saw in `tally`."""

    def __init__(
        self, task: Task, worker: Worker, effort: Effort, progress: Progress, default_us: Sequence[float]
    ) -> None:
        self._task = task
        self._worker = worker
        self._effort = effort
        self._progress = progress
        self._default_us = list(default_us)
        self._weights = [s.weight for s in task.sizes]
        self.tally = Tally()
        self._best: tuple[int, object] = (p.DEFAULT_ID, task.default)
        self._best_speedup = 1.0

    def run(self, candidates: Candidates, clock: Clock, most: int) -> Confirmed | None:
        """The confirmed best candidate (which may not be faster), or None when the default was never beaten.

        Ends when everything was tried, after `most` candidates or `patience` batches without a better
        one, or when what is left of the clock is needed to confirm. Raises `Failure` when the default itself fails.
        """
        idle = 0
        most = min(most, self._effort.most)
        while idle < self._effort.patience and clock.left_s > self._confirm_s() and self._tried < most:
            batch = candidates.next_batch(min(self._effort.batch, most - self._tried), self._best[1])
            if not batch:
                break
            before = self._best
            self._race(batch, clock)
            self._progress.best(self._best_speedup)
            idle = 0 if self._best is not before else idle + 1
        if self._best[0] == p.DEFAULT_ID:
            return None
        return self._confirm()

    @property
    def _tried(self) -> int:
        return self.tally.measured + sum(self.tally.failures.values())

    def _confirm_s(self) -> float:
        """About how long a confirmation takes; nothing is to be confirmed before something is better."""
        return 0.0 if self._best[0] == p.DEFAULT_ID else self._rung_s(1, self._effort.confirm_rounds)

    def _rung_s(self, candidates: int, rounds: int) -> float:
        """About how long so many rounds of the default and so many candidates take."""
        return (candidates + 1) * rounds * sum(us * 1e-6 + _TURN_OVERHEAD_S for us in self._default_us)

    def _race(self, batch: Sequence[object], clock: Clock) -> None:
        """Build a batch, halve it rung by rung, and let its best replace the best so far."""
        decisions: dict[int, object] = {}
        for decision in batch:
            if decisions and clock.left_s <= self._confirm_s():
                break
            built = self._build(decision)
            if built is not None:
                decisions[built] = decision
        speedups: dict[int, list[float]] = {i: [] for i in decisions}
        for rung, rounds in enumerate(self._effort.rungs):
            running = [*decisions, *([self._best[0]] if rung and self._best[0] != p.DEFAULT_ID else [])]
            if not decisions or clock.left_s < self._rung_s(len(running), rounds):
                break
            for i, values in self._speedups(running, rounds, decisions).items():
                speedups.setdefault(i, []).extend(values)
            if not decisions:
                break
            order = sorted(decisions, key=lambda i: median(speedups[i]), reverse=True)
            keep = order[: max(1, len(order) // 2)]
            self._worker.drop([i for i in order if i not in keep])
            decisions = {i: decisions[i] for i in keep}
            # A rung that leaves only what is clearly slower ends the race.
            if rung == 0 and median(speedups[keep[0]]) < 0.9:
                break
        if not any(speedups.get(i) for i in decisions):
            self._worker.drop(list(decisions))
            return
        winner = max(decisions, key=lambda i: median(speedups[i]))
        # The best so far ran in the same rounds from the second rung on: compare like with like.
        standing = median(speedups[self._best[0]]) if speedups.get(self._best[0]) else self._best_speedup
        if median(speedups[winner]) > max(standing, 1.0):
            loser, self._best = self._best, (winner, decisions.pop(winner))
            self._best_speedup = median(speedups[winner])
            if loser[0] != p.DEFAULT_ID:
                self._worker.drop([loser[0]])
        self._worker.drop(list(decisions))

    def _build(self, decision: object) -> int | None:
        try:
            (built,) = self._worker.order([decision])
            self._worker.take(built)
        except Failure as failure:
            if failure.blamed is None:
                raise  # the task itself could not be opened again
            if failure.kind == p.SLOWER:
                self.tally.measured += 1
            else:
                self._count(decision, failure)
            self._progress.trial(failure.kind == p.SLOWER, self._best_speedup)
            return None
        self.tally.measured += 1
        self._progress.trial(True, self._best_speedup)
        return built

    def _speedups(self, running: Sequence[int], rounds: int, decisions: dict[int, object]) -> dict[int, list[float]]:
        """Per candidate its speed-up over the default in each round; one that fails is removed from `decisions`."""
        while True:
            ids = [p.DEFAULT_ID, *(i for i in running if i in decisions or i == self._best[0])]
            try:
                samples = [self._worker.race(ids, s, rounds, us) for s, us in enumerate(self._default_us)]
            except Failure as failure:
                if failure.blamed not in decisions:
                    raise
                self.tally.measured -= 1
                self._count(decisions.pop(failure.blamed), failure)
                if not decisions:
                    return {}
                continue
            default = [s[p.DEFAULT_ID] for s in samples]
            return {i: speedups_by_round(default, [s[i] for s in samples], self._weights) for i in ids[1:]}

    def _confirm(self) -> Confirmed | None:
        """Fresh paired rounds of the default and the best; None when it fails now."""
        candidate, decision = self._best
        rounds, pair = self._effort.confirm_rounds, (p.DEFAULT_ID, candidate)
        try:
            samples = [self._worker.race(pair, s, rounds, us) for s, us in enumerate(self._default_us)]
        except Failure as failure:
            if failure.blamed != candidate:
                raise
            self._count(decision, failure)
            return None
        default = tuple(tuple(s[p.DEFAULT_ID]) for s in samples)
        measured = tuple(tuple(s[candidate]) for s in samples)
        by_round = speedups_by_round(default, measured, self._weights)
        return Confirmed(decision, default, measured, *median_and_interval(by_round))

    def _count(self, decision: object, failure: Failure) -> None:
        self.tally.failures[failure.kind] += 1
        self.tally.failed.append((decision, failure.kind, str(failure)))
