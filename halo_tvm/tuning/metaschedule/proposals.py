"""MetaSchedule's search over one task: its strategy proposes, a lab of ours measures, its cost model learns.

MetaSchedule's own task scheduler, builder and runner start processes for every batch. Here its strategy, cost
model and mutation run as they are, while candidates are built and timed by the workers that our own search
uses: what differs between the two engines is the search.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from types import FrameType, ModuleType
from typing import NamedTuple

import numpy as np
from tvm.s_tir import meta_schedule as ms

from ...targets import Target
from ..budget import Clock
from ..measure import protocol as p
from ..measure.lab import Failure, Lab
from ..task import Task
from .space import Features, Space, generator, stand_in

_LOGGER = logging.getLogger(__name__)
STRATEGIES = ("evolutionary", "replay-trace", "replay-func")
ROUNDS = 3  # turns that a candidate's time is the median of
TOGETHER = 4  # candidates that race in turns with the default, so that the machine's moods concern all of them
_BATCH = 16  # proposals between two updates of the cost model; MetaSchedule's default is 64
_WARM = 16  # measurements before the cost model is asked; MetaSchedule's default of 100 would make it guess
_POPULATION = (64, 512)  # least and most; MetaSchedule's default is 512


class Trial(NamedTuple):
    """One measured candidate: the weighted geometric mean of its times over the sizes, infinite when it failed."""

    decision: object
    us: float
    seconds: float  # since the search began, with everything it did


@dataclass(frozen=True)
class Proposal:
    """One candidate, measured or failed. Samples are per size, in us."""

    decision: object
    trace: object  # MetaSchedule's: tvm.s_tir.schedule.Trace
    candidate: int  # of the lab; dropped when the next proposal is asked for, unless it is the best so far
    times_us: tuple[float, ...] = ()  # the default's latency times the paired ratio: a slow minute does not count
    samples: tuple[tuple[float, ...], ...] = ()
    default_samples: tuple[tuple[float, ...], ...] = ()  # of the same turns
    kind: str = ""  # of the failure: an error class, or protocol.SLOWER
    message: str = ""

    @property
    def failed(self) -> bool:
        return self.kind not in ("", p.SLOWER)

    def us(self, weights: Sequence[float]) -> float:
        return geometric(self.times_us, weights) if self.times_us else math.inf


def proposals(
    task: Task,
    target: Target,
    lab: Lab,
    default_us: Sequence[float],
    clock: Clock,
    *,
    trials: int,
    seed: int,
    strategy: str = "evolutionary",
    facts: Mapping[str, object] | None = None,
) -> Iterator[Proposal]:
    """Candidates in the order in which MetaSchedule asks for them, measured; `task` is open in `lab`.

    `default_us` are times of the default at the sizes of `task`, which may be fewer than those of the task
    it was made from. Ends with the space, with `trials`, or with the clock, which is looked at after every
    few candidates: the last ones, a round of proposing and the cost model's training may go over it.
    """
    space = Space(task, facts or {})
    context, model = _context(space, target, strategy, seed), _model(space)
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(context.mod)
    weights = [size.weight for size in task.sizes]
    most = min(trials, len(space.allowed))
    best: Proposal | None = None
    seen: set[object] = set()
    context.pre_tuning(
        most, min(_BATCH, most), design_spaces=context.generate_design_space(), database=database, cost_model=model
    )
    try:
        while len(seen) < most and clock.left_s > 0:
            with _interrupt_waits():
                asked = context.generate_measure_candidates()
            if asked is None:
                return
            # Strategies that replay draw with repetition, and combinations that do not exist.
            drawn = {space.decision(one.sch): one for one in asked}
            fresh = [d for d in drawn if d in space.allowed and d not in seen][: most - len(seen)]
            ids = lab.order(fresh)
            results: list[tuple[object, ms.runner.RunnerResult]] = []
            for at in range(0, len(fresh), TOGETHER):
                if clock.left_s <= 0:
                    lab.drop(ids[at:])
                    return
                some = {i: (d, drawn[d].sch.trace) for d, i in zip(fresh[at : at + TOGETHER], ids[at : at + TOGETHER])}
                seen.update(decision for decision, _ in some.values())
                for proposal in _measured(lab, some, default_us):
                    results.append((drawn[proposal.decision], _result(proposal, weights)))
                    yield proposal
                    loser = proposal
                    if proposal.us(weights) < (best.us(weights) if best else math.inf):
                        best, loser = proposal, best
                    if loser is not None and loser.kind == "":
                        lab.drop([loser.candidate])
            with _interrupt_waits():
                _learn(context, model, database, workload, results)
    finally:
        context.post_tuning()


def geometric(times_us: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted geometric mean of positive times."""
    total = sum(weights)
    return math.exp(sum(w * math.log(us) for w, us in zip(weights, times_us, strict=True)) / total)


def _measured(lab: Lab, some: Mapping[int, tuple[object, object]], default_us: Sequence[float]) -> Iterator[Proposal]:
    """Candidates, ordered before, as (decision, trace) by id: built, and raced against the default and each other."""
    failures: dict[int, Failure] = {}
    running: list[int] = []
    for candidate in some:
        try:
            lab.take(candidate)
            running.append(candidate)
        except Failure as failure:
            if failure.blamed is None:
                raise  # the task itself could not be opened again
            failures[candidate] = failure
    rows: list[dict[int, list[float]]] = []
    while running:
        try:
            rows = [lab.race([p.DEFAULT_ID, *running], size, ROUNDS, us) for size, us in enumerate(default_us)]
            break
        except Failure as failure:
            if failure.blamed not in running:
                raise
            failures[failure.blamed] = failure
            running.remove(failure.blamed)
    for candidate, (decision, trace) in some.items():
        if candidate in failures:
            failure = failures[candidate]
            yield Proposal(decision, trace, candidate, kind=failure.kind, message=str(failure))
            continue
        yield Proposal(
            decision,
            trace,
            candidate,
            times_us=tuple(
                us * median(c / d for c, d in zip(row[candidate], row[p.DEFAULT_ID], strict=True))
                for us, row in zip(default_us, rows, strict=True)
            ),
            samples=tuple(tuple(row[candidate]) for row in rows),
            default_samples=tuple(tuple(row[p.DEFAULT_ID]) for row in rows),
        )


def _result(proposal: Proposal, weights: Sequence[float]) -> ms.runner.RunnerResult:
    if proposal.kind:
        return ms.runner.RunnerResult(None, f"{proposal.kind}: {proposal.message}")
    return ms.runner.RunnerResult([proposal.us(weights) * 1e-6], None)


def _learn(
    context: ms.TuneContext,
    model: ms.cost_model.CostModel,
    database: ms.database.Database,
    workload: ms.database.Workload,
    results: Sequence[tuple[object, ms.runner.RunnerResult]],
) -> None:
    """What MetaSchedule's callbacks do after a batch: the database grows, the model trains, the strategy is told."""
    candidates, outcomes = [c for c, _ in results], [r for _, r in results]
    for candidate, outcome in results:
        # Failures are records too, at 1e10 s, so that they are not proposed again.
        secs = list(outcome.run_secs) if outcome.run_secs is not None else [1e10]
        database.commit_tuning_record(
            ms.database.TuningRecord(candidate.sch.trace, workload, secs, context.target, None)
        )
    if candidates:
        model.update(context, candidates, outcomes)
    context.notify_runner_results(candidates, outcomes)


def _context(space: Space, target: Target, strategy: str, seed: int) -> ms.TuneContext:
    assert strategy in STRATEGIES, f"strategy {strategy} is none of {STRATEGIES}"
    # The cost model draws from NumPy's global generator until it is trained; nothing else makes it repeatable.
    np.random.seed(seed)
    density = len(space.allowed) / space.product
    least, most = _POPULATION
    options = {}
    if strategy == "evolutionary":
        population = int(min(most, max(least, len(space.allowed) // 2, math.ceil(least / (4 * density)))))
        # A space has fewer members than MetaSchedule wants to begin with: one unmeasured is enough.
        options = {"population_size": population, "init_min_unmeasured": 1}
    with _without_intrinsics():
        return ms.TuneContext(
            stand_in(),
            target=target.tvm,
            space_generator=generator(space, seed + 1),
            search_strategy=ms.search_strategy.SearchStrategy.create(strategy, **options),
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
