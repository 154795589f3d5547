"""Timing decisions against each other: in turns, round by round, in a process that may crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import UsageError
from ..tuning.measure import protocol as p
from ..tuning.measure.lab import Failure, Lab
from ..tuning.statistics import median_and_interval, speedups_by_round
from ._bench import bench, candidate, for_bench
from ._builds import rule_for
from ._table import Rows
from ._tasks import Task

_FEWEST = 6  # rounds: with fewer there is no 95 % interval of a median
_PROBES = 3  # rounds that say how long a call takes
_TIMEOUT_S = 30.0

Samples = tuple[tuple[float, ...], ...]  # us; rows are sizes, columns rounds


@dataclass(frozen=True)
class Measured:
    """One decision. Speed-ups are over the default, by paired rounds; `why_not` says why there are no samples."""

    decision: object
    label: str
    us: Samples = ()
    speedup: float = 0.0
    low: float = 0.0
    high: float = 0.0
    speedup_by_fastest: float = 0.0  # of the fastest rounds: to look at landscapes, not to decide by
    why_not: str = ""

    @property
    def medians(self) -> tuple[float, ...]:
        """Median microseconds by size."""
        return tuple(median(row) for row in self.us)

    @property
    def fastest(self) -> tuple[float, ...]:
        """Microseconds of the fastest round by size: what nothing disturbed."""
        return tuple(min(row) for row in self.us)


@dataclass(frozen=True, repr=False)
class Measurements(Rows[Measured]):
    """The default first, then the decisions as given. Iterating gives `Measured` rows."""

    task: Task
    rounds: int
    rows: tuple[Measured, ...]

    @property
    def default(self) -> Measured:
        return self.rows[0]

    @property
    def best(self) -> Measured:
        """The largest median speed-up; the default has 1."""
        return max(self.timed, key=lambda row: row.speedup)

    @property
    def timed(self) -> tuple[Measured, ...]:
        """The rows with samples."""
        return tuple(row for row in self.rows if row.us)

    @property
    def failed(self) -> tuple[Measured, ...]:
        """The rows that failed; one that was far too slow to be timed is none of them."""
        return tuple(row for row in self.rows if row.why_not and not row.why_not.startswith(p.SLOWER))

    def of(self, decision: object) -> Measured:
        for row in self.rows:
            if row.decision == decision:
                return row
        raise UsageError(
            f"expected a decision that was measured, found {decision!r}: measure it, the rows are "
            f"{'; '.join(row.label for row in self.rows)}"
        )

    def _table(self) -> tuple[list[str], list[list[object]], str]:
        sizes = [f"us at {_size(dims)}" for dims in self.task.sizes]
        rows: list[list[object]] = []
        for row in self.rows:
            speed = f"{row.speedup:.3f} [{row.low:.3f}, {row.high:.3f}]" if row.us else row.why_not
            rows.append([row.label, *([*row.medians] if row.us else [None] * len(sizes)), speed])
        title = f"{self.task.name}: medians of {self.rounds} paired rounds, {self.task.target.cores} threads"
        return ["decision", *sizes, "speed-up [95 %]"], rows, title


@dataclass(frozen=True)
class Comparison:
    """Two decisions in fresh paired rounds. `speedup` is how much faster `b` is than `a`, with its 95 % interval."""

    task: Task
    a: object
    b: object
    a_us: Samples
    b_us: Samples
    speedup: float
    low: float
    high: float
    cold: bool = True  # weights came from memory

    @property
    def rounds(self) -> int:
        return min(map(len, self.a_us))

    @property
    def is_faster(self) -> bool:
        """Whether `b` is faster beyond doubt: the tuner's rule."""
        return self.low > 1.0

    @property
    def verdict(self) -> str:
        if self.is_faster:
            return "faster"
        return "slower" if self.high < 1.0 else "no difference that these rounds can show"

    def __repr__(self) -> str:
        a, b = (self.task.describe(d) for d in (self.a, self.b))
        interval = f"{self.speedup:.3f}x [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.task.name}: ({b}) against ({a}): {interval} over {self.rounds} rounds: {self.verdict}"


def measure(
    task: Task,
    decisions: Sequence[object] = (),
    *,
    sizes: Sequence[Sequence[int]] = (),
    rounds: int = 8,
    cold: bool = True,
    timeout_s: float = _TIMEOUT_S,
    on_progress: Callable[[int, int], None] | None = None,
) -> Measurements:
    """Time the task's default and `decisions` (of any rule), taking turns in every round.

    Each is built and compared with the unscheduled function before it is timed; one that fails or crashes gets a
    row that says so. `sizes` replaces the task's sizes. `cold`: weights come from memory, as in a model.
    `on_progress(done, all)` is called after every build.
    """
    _check_rounds(rounds)
    timed = task.at(sizes) if sizes else task
    wanted = [d for d in dict.fromkeys(decisions) if d != timed.default]
    for decision in wanted:
        rule_for(timed, decision)  # refuses what is no decision, before anything is started
    with bench(timed, cold=cold, timeout_s=timeout_s) as lab:
        built, failures = _prepare(lab, timed, wanted, on_progress)
        samples = _race(lab, timed, built, rounds, failures)
        lab.drop([i for i in built if i in samples])
    default = samples[p.DEFAULT_ID]
    rows = [Measured(timed.default, timed.describe(timed.default), default, 1.0, 1.0, 1.0, 1.0)]
    ids = {decision: i for i, decision in built.items()}
    for decision in wanted:
        label = timed.describe(decision)
        us = samples.get(ids.get(decision, -1))
        if us is None:
            rows.append(Measured(decision, label, why_not=failures[decision]))
        else:
            rows.append(Measured(decision, label, us, *_speedup(timed, default, us), _of_fastest(timed, default, us)))
    return Measurements(timed, rounds, tuple(rows))


def compare(
    task: Task,
    a: object,
    b: object | None = None,
    *,
    sizes: Sequence[Sequence[int]] = (),
    rounds: int = 20,
    cold: bool = True,
    timeout_s: float = _TIMEOUT_S,
) -> Comparison:
    """How much faster `b` is than `a`; with one decision, how much faster that is than the default.

    Both are in the form that ships and were compared with the unscheduled function. `UsageError` when one fails.
    """
    _check_rounds(rounds)
    timed = task.at(sizes) if sizes else task
    a, b = (timed.default, a) if b is None else (a, b)
    wanted = [d for d in dict.fromkeys((a, b)) if d != timed.default]
    for decision in wanted:
        rule_for(timed, decision)
    with bench(timed, cold=cold, timeout_s=timeout_s) as lab:
        built, failures = _prepare(lab, timed, wanted, None)
        for i, decision in list(built.items()):
            try:
                lab.final(i)
            except Failure as failure:
                failures[decision] = f"{failure.kind}: {failure}"
                del built[i]
        samples = _race(lab, timed, built, rounds, failures) if not failures else {}
        lab.drop(list(built))
    if failures:
        decision, why = next(iter(failures.items()))
        raise UsageError(
            f"expected two decisions that run, but ({timed.describe(decision)}) does not: {why}: choose another"
        )
    ids = {timed.default: p.DEFAULT_ID, **{decision: i for i, decision in built.items()}}
    a_us, b_us = samples[ids[a]], samples[ids[b]]
    return Comparison(timed, a, b, a_us, b_us, *_speedup(timed, a_us, b_us), cold=cold)


def _prepare(
    lab: Lab, task: Task, decisions: Sequence[object], on_progress: Callable[[int, int], None] | None
) -> tuple[dict[int, object], dict[object, str]]:
    """(candidates that were built and checked, failures by decision)."""
    try:
        lab.open(for_bench(task))
    except Failure as failure:
        raise UsageError(
            f"expected a task whose default can be measured, but that of {task.name} cannot ({failure.kind}: "
            f"{failure}): try smaller sizes or a longer timeout_s"
        ) from failure
    ordered = dict(zip(lab.order([candidate(task, d) for d in decisions]), decisions))
    built: dict[int, object] = {}
    failures: dict[object, str] = {}
    for done, (i, decision) in enumerate(ordered.items(), start=1):
        try:
            lab.take(i)
        except Failure as failure:
            if failure.blamed is None:
                raise UsageError(
                    f"expected to measure {task.name}, but its measurement cannot go on ({failure.kind}: {failure}): "
                    f"leave out ({task.describe(decision)})"
                ) from failure
            failures[decision] = f"{failure.kind}: {_first_line(failure)}"
        else:
            built[i] = decision
        if on_progress:
            on_progress(done, len(ordered))
    return built, failures


def _race(
    lab: Lab, task: Task, built: Mapping[int, object], rounds: int, failures: dict[object, str]
) -> dict[int, Samples]:
    """Samples by candidate; one that fails while it runs joins `failures`, and the others start again."""
    running = [p.DEFAULT_ID, *built]
    while True:
        try:
            rows = []
            for size in range(len(task.sizes)):
                # Long calls are probed by themselves: their number per turn follows from how long one takes.
                us = median(lab.race([p.DEFAULT_ID], size, _PROBES, 1e3)[p.DEFAULT_ID])
                rows.append(lab.race(running, size, rounds, us))
            return {i: tuple(tuple(row[i]) for row in rows) for i in running}
        except Failure as failure:
            if failure.blamed not in built:
                raise UsageError(
                    f"expected to measure {task.name}, but its default failed ({failure.kind}: {failure}): "
                    "try smaller sizes or a longer timeout_s"
                ) from failure
            failures[built[failure.blamed]] = f"{failure.kind}: {_first_line(failure)}"
            running.remove(failure.blamed)


def _speedup(task: Task, default: Samples, us: Samples) -> tuple[float, float, float]:
    weights = [size.weight for size in task.tuning.sizes]
    return median_and_interval(speedups_by_round(default, us, weights))


def _of_fastest(task: Task, default: Samples, us: Samples) -> float:
    weights = [size.weight for size in task.tuning.sizes]
    (value,) = speedups_by_round([[min(row)] for row in default], [[min(row)] for row in us], weights)
    return value


def _check_rounds(rounds: int) -> None:
    if rounds < _FEWEST:
        raise UsageError(f"expected at least {_FEWEST} rounds, found {rounds}: fewer give no 95 % interval of a median")


def _first_line(failure: Failure) -> str:
    return str(failure).strip().split("\n")[0][:200]


def _size(dims: Sequence[int]) -> str:
    return "x".join(map(str, dims)) or "its size"
