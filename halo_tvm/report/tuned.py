"""What a tuning run came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ..codec import Must
from ..errors import INTERRUPTED
from .parts import BuiltCandidate, Host, Skipped, StageTotal, TaskStage, TunedModel

IMPROVED, KEPT, FAILED, UNTRIED = "improved", "default kept", "failed", "not reached"
UNMEASURED = "not measured"  # candidates were built only
Positive = Annotated[float, Must(lambda x: x > 0, "more than zero")]


@dataclass(frozen=True)
class TaskResult:
    """One task. Latencies are per size, in us; the speed-up is the weighted geometric mean over the sizes."""

    key: str
    readable: str
    rule: str
    count: int
    outcome: str  # IMPROVED, KEPT, FAILED, UNTRIED or UNMEASURED
    sizes: tuple[tuple[int, ...], ...]
    default_us: tuple[float, ...]
    best_us: tuple[float, ...]
    decision: Mapping[str, object]
    speedup: Positive
    speedup_low: Positive
    speedup_high: Positive
    measured: int
    failures: Mapping[str, int]  # by error class
    seconds: float
    note: str
    stages: tuple[TaskStage, ...] = ()  # in the order in which they ran; those that are off are missing
    predicted_gain: float = 0.0  # by how much the best was still thought to be beaten, 0.01 is 1 %
    roofline_us: tuple[float, ...] = ()  # per size; empty without a host profile
    stage: str = ""  # that found the winner: one of config.STAGES; "" where the default stands
    ended: str = ""  # why its search ended: space, patience, budget, trials, roofline, small gain, ...
    rank_correlation: float | None = None  # Spearman's, of predicted and measured latencies
    weights: tuple[Positive, ...] = ()  # of the sizes; () means equal
    models: Mapping[str, int] = field(default_factory=dict)  # call sites in each model; {} where there is one model
    candidates: tuple[BuiltCandidate, ...] = ()  # that were built, where nothing is measured

    @property
    def built(self) -> int:
        """Candidates that could be built, if only as the device's source, where nothing is measured."""
        return sum(not c.failure for c in self.candidates)

    @property
    def improved(self) -> bool:
        """Whether a decision that is faster was committed."""
        return self.outcome == IMPROVED

    @property
    def failed(self) -> int:
        """Candidates that failed."""
        return sum(self.failures.values())

    @property
    def before_us(self) -> float:
        """Latency of the default, weighted over the sizes; 0 where it was not measured."""
        return weighted(self.default_us, self.weights)

    @property
    def after_us(self) -> float:
        """The same of what is used now: the default's divided by the paired speed-up."""
        return self.before_us / self.speedup

    @property
    def saved_us(self) -> float:
        """Time saved in one run of each model that uses it."""
        return self.count * (self.before_us - self.after_us)


@dataclass(frozen=True)
class TuneResult:
    """A whole run."""

    model: str
    target: str
    host: Host
    log: str  # the directory records were written to
    tasks: tuple[TaskResult, ...]
    skipped: tuple[Skipped, ...] = ()
    lookup: Mapping[str, object] = field(default_factory=dict)  # what the logs that were read came to
    budget_s: float = 0.0
    seconds: float = 0.0
    threads: int = 0
    worker_restarts: int = 0
    interrupted: bool = False
    resumed: bool = False
    notes: tuple[str, ...] = ()  # what was ignored and why, and what to do next
    run: str = ""  # id, under which --resume finds it
    rank_correlation: float | None = None  # over all tasks
    drift: float | None = None  # of the reference kernel: its slowest round over its fastest, less 1
    models: tuple[TunedModel, ...] = ()  # where there are several
    build_only: bool = False  # nothing was measured, and nothing is in a log
    kind: str = field(default="tune", init=False)

    @property
    def stages(self) -> tuple[StageTotal, ...]:
        """What each stage contributed over all tasks, in the order in which stages ran."""
        names = dict.fromkeys(stage.stage for task in self.tasks for stage in task.stages)
        return tuple(self._stage(name) for name in names)

    def _stage(self, name: str) -> StageTotal:
        parts = [stage for task in self.tasks for stage in task.stages if stage.stage == name]
        won = [task for task in self.improved if task.stage == name]
        failed = sum(part.failed for part in parts)
        return StageTotal(
            stage=name,
            measured=sum(part.tried for part in parts) - failed,
            failed=failed,
            winners=len(won),
            saved_us=sum(task.saved_us for task in won),
            seconds=sum(part.seconds for part in parts),
        )

    @property
    def exit_code(self) -> int:
        """Of the worst model: the larger the code, the further its cause is from what was typed. An interruption is
        larger than all."""
        return INTERRUPTED if self.interrupted else max((m.exit_code for m in self.models), default=0)

    @property
    def improved(self) -> tuple[TaskResult, ...]:
        return tuple(t for t in self.tasks if t.improved)

    @property
    def measured(self) -> int:
        return sum(t.measured for t in self.tasks)

    @property
    def failures(self) -> dict[str, int]:
        """Failed trials by error class over all tasks."""
        total: dict[str, int] = {}
        for task in self.tasks:
            for kind, count in task.failures.items():
                total[kind] = total.get(kind, 0) + count
        return total

    def __str__(self) -> str:
        lines = [_line(t) for t in sorted(self.tasks, key=lambda t: -t.saved_us)]
        lines += [f"  skipped       {s.count:>3} x {s.readable}: {s.reason}" for s in self.skipped]
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """One sentence, "nothing improved" included."""
        if self.build_only:
            return self._built()
        failed = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items())) or "none failed"
        trials = f"{self.measured} candidates measured ({failed}) in {self.seconds:.0f} s"
        if self.interrupted:
            trials += ", interrupted"
        if not self.tasks:
            return f"nothing to tune: no function has more than one decision ({len(self.skipped)} skipped)"
        if all(t.outcome == UNTRIED for t in self.tasks):
            reasons = "; ".join(dict.fromkeys(t.note for t in self.tasks if t.note))
            reasons = "interrupted before a task was finished" if self.interrupted else reasons
            return f"nothing was measured ({reasons[:200]}): the default of each of {len(self.tasks)} tasks stands"
        if not self.improved:
            return f"nothing improved: the default of each of {len(self.tasks)} tasks stands, {trials}"
        return f"{len(self.improved)} of {len(self.tasks)} tasks improved, {trials}; records are in {self.log}"

    def _built(self) -> str:
        built, failed = sum(t.built for t in self.tasks), sum(self.failures.values())
        if not self.tasks:
            return f"not measured: no function has more than one decision ({len(self.skipped)} skipped)"
        reasons = [c.source_only for t in self.tasks for c in t.candidates if c.source_only]
        uncompiled = ""
        if reasons:
            uncompiled = f", {len(reasons)} of them as source that no compiler of the device has seen ({reasons[0]}),"
        return (
            f"not measured: {built} candidates of {len(self.tasks)} tasks were built ({failed} failed){uncompiled} and "
            f"ranked by their rules' own models in {self.seconds:.0f} s{', interrupted' if self.interrupted else ''}; "
            "no record was written"
        )


def weighted(values_us: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted mean of latencies at the first sizes of a task (behind a long one none is timed); 0 of none."""
    shares = weights[: len(values_us)] if len(weights) >= len(values_us) else [1.0] * len(values_us)
    return sum(w * us for w, us in zip(shares, values_us, strict=True)) / sum(shares) if values_us else 0.0


def _line(task: TaskResult) -> str:
    gain = f"{task.speedup:.3f}x (at least {task.speedup_low:.3f}x)" if task.improved else task.note
    return f"  {task.outcome:<12}  {task.count:>3} x {task.readable}: {gain}"
