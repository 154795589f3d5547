"""From a task to its search: what the logs know of it, the analytic ranking, the learned model of its rule."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ...records.decision import decision_from_plain, decision_to_plain
from ...records.log import TuningLog
from ...records.record import MEASURED, Fingerprint, Record, unlikeness
from ...records.trials import Trials
from ...records.workload import family_of
from ...report.parts import TaskStage
from ...targets import Target
from ..measure import protocol as p
from ..measure.lab import Lab
from ..progress import Progress
from ..task import Task
from . import features
from .analytic import predicted_speedups
from .board import Board
from .cost_model import MOST_LOGGED, CostModel, file_of, load
from .efforts import ANALYTIC, RANKED, RECORDS, Effort
from .ranking import Ranking
from .roofline import work_of
from .rounds import Search

# Not tried again with this rule version: at once, or when it happened twice, for a busy or small machine does it too.
_REMEMBERED = {p.WRONG_RESULT}
_SUSPECTED = {p.TIMEOUT, p.CRASH, p.OUT_OF_MEMORY}
_RACED_AGAIN = 4  # the best trials of a run that goes on


class Preparation:
    """What the searches of one run share. Logs are read when first needed, `log` at once."""

    def __init__(
        self,
        target: Target,
        fingerprint: Fingerprint,
        effort: Effort,
        read: Sequence[Path],
        *,
        seed: int = 0,
        resumed: str = "",
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._target = target
        self._fingerprint = fingerprint
        self._effort = effort
        self._read = tuple(read)
        self._seed = seed
        self._resumed = resumed  # the id of the run that goes on
        self._note = note
        self.log = TuningLog.open(read, fingerprint)
        self._trials: Trials | None = None
        self._models: dict[str, CostModel] = {}

    @property
    def trials(self) -> Trials:
        if self._trials is None:
            self._trials = Trials.open(self._read, self._fingerprint)
        return self._trials

    def search(
        self,
        task: Task,
        lab: Lab,
        progress: Progress,
        default_us: Sequence[float],
        *,
        roofline_us: Sequence[float] = (),
        start: object | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> Search:
        """The search of a task. With `start`, a decision, it begins there and knows nothing of the default."""
        began = now()
        rule = task.rule
        family, extents = family_of(task.func)
        tried = self.trials.of(task.key, rule.name, rule.version)
        avoid = self._avoided(task, tried)
        board = Board(task.default, task.space, avoid=avoid, start=start)
        again = self._known(task, board, [r for r in tried if self._resumed and r.run == self._resumed])
        self.log.best(task.key, rule.name, rule.version, readable=task.readable)  # counted as hit or miss
        decisions: list[object] = []
        if RECORDS in self._effort.stages:
            decisions = self._decisions(task, self.log.hints(task.key, rule.name, rule.version))
            most = self._effort.nearest
            near = self.log.nearest(family, extents, rule.name, rule.version, exclude=task.key, most=most)
            decisions += self._decisions(task, near)
        analytic, modelled = None, False
        if ANALYTIC in self._effort.stages and start is None:
            analytic, modelled = predicted_speedups(task, self._target, board.space)
        ranked_s = now() - began
        model, table = None, None
        if RANKED in self._effort.stages:
            model = self._model(task)
            facts = self._facts(task, extents, default_us)
            rows = [{**features.of_decision(decision_to_plain(d)), **facts} for d in board.space]
            if modelled and analytic is not None:
                for row, score in zip(rows, analytic):
                    if math.isfinite(score):
                        row["analytic"] = float(score)
            table = features.Table(rows)
        search = Search(
            task,
            lab,
            self._effort,
            progress,
            default_us,
            board=board,
            ranking=Ranking(board, task.key, analytic, model, table),
            records=decisions,
            again=again,
            start=start,
            roofline_us=roofline_us,
            seed=self._seed,
            now=now,
        )
        if analytic is not None:
            best = board.best_speedup
            search.stages[ANALYTIC] = TaskStage(ANALYTIC, 0, 0, ranked_s, best, best)
        return search

    def standing(self, task: Task) -> list[object]:
        """Decisions that `compile` chooses from on this machine, by what the logs held when the run began."""
        known = self.log.standing(task.key, task.rule.name, task.rule.version)
        return self._decisions(task, [r for r in known if unlikeness(r, self._fingerprint) == 0])

    def save_models(self, directory: Path) -> None:
        """Keep what was learned in this run beside the log."""
        for model in self._models.values():
            path = file_of(directory, self._fingerprint.key, model.rule)
            if path is not None and model.measured:
                model.save(path)

    def _model(self, task: Task) -> CostModel:
        """The model of the task's rule: the saved one as it is, and the trials of the log to correct it."""
        rule = task.rule
        if rule.name in self._models:
            return self._models[rule.name]
        prior, rows = None, 0
        for directory in self._read:
            path = file_of(directory, self._fingerprint.key, rule.name)
            if path is None or not path.is_file():
                continue
            try:
                prior, rows = load(path, rule.name, rule.version)
                break
            except (ValueError, OSError) as error:
                self._note(f"the saved model {path} is not used: {error}")
        made = CostModel(rule.name, rule.version, prior=prior, prior_rows=rows, seed=self._seed)
        others = self.trials.latest(rule.name, rule.version, MOST_LOGGED)
        own = self.trials.of(task.key, rule.name, rule.version)
        useful = [r for r in (*(r for r in others if r.workload != task.key), *own) if _is_timed(r)][-MOST_LOGGED:]
        made.logged([(features.of_record(r), math.log(r.speedup), r.workload) for r in useful])
        if prior is None:
            made.fit(task.key)
        self._models[rule.name] = made
        return made

    def _facts(self, task: Task, extents: Sequence[int], default_us: Sequence[float]) -> features.Row:
        known = [(size.weight, work_of(task, size.dims)) for size in task.sizes]
        total = sum(weight for weight, _ in known)
        return features.of_task(
            task.readable,
            extents,
            task.sizes,
            default_us,
            self._fingerprint.facts(),
            flops=sum(weight * work.flops for weight, work in known) / total,
            size_bytes=sum(weight * (work.weight_bytes + work.other_bytes) for weight, work in known) / total,
            lanes=self._target.lanes_f32,
        )

    def _avoided(self, task: Task, records: Sequence[Record]) -> list[object]:
        """Decisions that are known to fail; how many is noted."""
        sure = self._decisions(task, [r for r in records if r.outcome in _REMEMBERED])
        suspected = Counter(self._decisions(task, [r for r in records if r.outcome in _SUSPECTED]))
        avoid = list(dict.fromkeys([*sure, *(decision for decision, times in suspected.items() if times > 1)]))
        if avoid:
            self._note(f"{task.readable}: {len(avoid)} decisions that failed in earlier runs are not tried again")
        return avoid

    def _known(self, task: Task, board: Board, records: Sequence[Record]) -> list[object]:
        """Trials of the run that goes on are not made again, but for its best, which are raced once more.

        The best are those measured most: the largest of all numbers is the luckiest, mostly of few rounds.
        """
        known: dict[object, tuple[int, int, float]] = {}  # sizes, rounds, speed-up of what was faster
        for record in records:
            for decision in self._decisions(task, [record]):
                known.setdefault(decision, (0, 0, 0.0))
                if record.outcome != MEASURED:
                    board.close(decision)
                    continue
                board.measured(decision, record.speedup, full=False)
                if record.speedup > 1.0:
                    rounds = min(map(len, record.candidate_us), default=0)
                    known[decision] = max(known[decision], (len(record.candidate_us), rounds, record.speedup))
        faster = [decision for decision, seen in known.items() if seen[2] and decision != task.default]
        again = sorted(faster, key=known.__getitem__, reverse=True)[:_RACED_AGAIN]
        for decision in again:
            board.reopen(decision)
        board.known = len(known) - len(again)
        return again

    def _decisions(self, task: Task, records: Sequence[Record]) -> list[object]:
        found = []
        for record in records:
            try:
                found.append(decision_from_plain(task.rule.Decision, record.decision))
            except (ValueError, TypeError) as error:
                self._note(f"a record for {task.readable} is not used: {error}")
        return found


def _is_timed(record: Record) -> bool:
    return record.outcome == MEASURED and record.speedup > 0
