"""Stage "metaschedule": MetaSchedule's strategy proposes, the tuner measures, MetaSchedule's cost model learns.

MetaSchedule's own task scheduler, builder and runner start processes for every batch. Here its strategy, cost model
and mutation run as they are, while candidates are built, checked and timed as those of every other stage.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, cast

import numpy as np
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..board import Board
from ..efforts import METASCHEDULE
from .space import Features, Space, generator, stand_in

Candidate = Any  # ms.search_strategy.MeasureCandidate
_LOGGER = logging.getLogger(__name__)
_BATCH = 16  # proposals between two updates of the cost model; MetaSchedule's default is 64
_WARM = 16  # measurements before the cost model is asked; MetaSchedule's default of 100 would make it guess
_POPULATION = (64, 512)  # least and most; MetaSchedule's default is 512
_FAILED_S = 1e10  # what MetaSchedule notes for a trial that failed, so that it is not proposed again


class MetaSchedule:
    """Hands out what MetaSchedule asks for; what came of it is told when all of it was tried."""

    name = METASCHEDULE

    def __init__(self, decisions: Sequence[object], seed: int) -> None:
        """`decisions` are all of the task's space, of one dataclass."""
        self._space = Space(decisions)
        self._seed = seed
        self._strategy: _Strategy | None = None  # made when it is first asked: that takes a second
        self._asked: dict[object, Candidate] = {}  # by decision; what came of it is not told yet

    def propose(self, board: Board, count: int) -> list[object]:
        """Up to `count` decisions not tried yet, in MetaSchedule's order; none when it has no more, or while some that
        it asked for are measured."""
        while True:
            waiting = [decision for decision in self._asked if board.is_open(decision)]
            if waiting or any(not board.is_settled(decision) for decision in self._asked):
                return waiting[:count]
            if not board.open.any() or not self._ask(board):
                return []

    def _ask(self, board: Board) -> bool:
        """Tell what came of the last batch and ask for the next; False when there is none."""
        with _interrupt_waits():
            if self._strategy is None:
                self._strategy = _Strategy(self._space, self._seed)
            elif self._asked:
                self._strategy.tell([(one, board.speedups.get(decision)) for decision, one in self._asked.items()])
            asked = self._strategy.ask()
        # Combinations that are no decision of the space come up, too, and those that other stages have tried.
        drawn = {self._space.decision(one.sch): one for one in asked or ()}
        self._asked = {decision: one for decision, one in drawn.items() if decision in self._space.allowed}
        return asked is not None


class _Strategy:
    """MetaSchedule's evolutionary search with its cost model and its database."""

    def __init__(self, space: Space, seed: int) -> None:
        self._context, self._model = _context(space, seed), _model(space)
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._context.mod)
        most = len(space.allowed)
        self._context.pre_tuning(
            most,
            min(_BATCH, most),
            design_spaces=self._context.generate_design_space(),
            database=self._database,
            cost_model=self._model,
        )

    def ask(self) -> Sequence[Candidate] | None:
        """The next candidates; None when there are no more."""
        return cast("Sequence[Candidate] | None", self._context.generate_measure_candidates())

    def tell(self, measured: Sequence[tuple[Candidate, float | None]]) -> None:
        """Speed-ups of candidates, None for a failure: the database grows, the model trains, the strategy is told, as
        MetaSchedule's callbacks do behind a batch."""
        candidates = [candidate for candidate, _ in measured]
        # Times are shares of the default's: only their ratios matter.
        seconds = [None if speedup is None else [1.0 / speedup] for _, speedup in measured]
        outcomes = [ms.runner.RunnerResult(secs, None if secs else "failed") for secs in seconds]
        for candidate, secs in zip(candidates, seconds, strict=True):
            trace, target = candidate.sch.trace, self._context.target
            record = ms.database.TuningRecord(trace, self._workload, secs or [_FAILED_S], target, None)
            self._database.commit_tuning_record(record)
        self._model.update(self._context, candidates, outcomes)
        self._context.notify_runner_results(candidates, outcomes)


def _context(space: Space, seed: int) -> ms.TuneContext:
    # The cost model draws from NumPy's global generator until it is trained; nothing else makes it repeatable.
    np.random.seed(seed)
    density = len(space.allowed) / space.product
    least, most = _POPULATION
    population = int(min(most, max(least, len(space.allowed) // 2, math.ceil(least / (4 * density)))))
    with _without_intrinsics():
        return ms.TuneContext(
            stand_in(),
            target=Target("llvm"),  # of the stand-in
            space_generator=generator(space, seed + 1),
            # A space has fewer members than MetaSchedule wants to begin with: one unmeasured is enough.
            search_strategy=ms.search_strategy.EvolutionarySearch(population_size=population, init_min_unmeasured=1),
            task_name="main",
            rand_state=seed % (2**31 - 2) + 1,
            num_threads=1,  # what it calls is Python; the cores build candidates meanwhile
            logger=_LOGGER,
        )


def _model(space: Space) -> ms.cost_model.CostModel:
    return ms.cost_model.XGBModel(
        extractor=Features(space),
        config=ms.cost_model.xgb_model.XGBConfig(nthread=1),  # a dozen rows: threads cost more than they bring
        num_warmup_samples=_WARM,
    )


@contextmanager
def _without_intrinsics() -> Iterator[None]:
    """A context imports TVM's tensor intrinsics, half a minute of parsing, for schedules that use them: ours do not."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _interrupt_waits() -> Iterator[None]:
    """Ctrl-C takes effect behind the block: TVM turns an interruption of its callbacks into another error."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []
    before = signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
