"""What a tuning run came to, as records fit for JSON and for a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

IMPROVED, KEPT, FAILED, UNTRIED = "improved", "default kept", "failed", "not reached"


@dataclass(frozen=True)
class TaskResult:
    """One task. Latencies are per size, in us; the speed-up is the weighted geometric mean over the sizes."""

    key: str
    readable: str
    rule: str
    count: int
    outcome: str  # IMPROVED, KEPT, FAILED or UNTRIED
    sizes: tuple[tuple[int, ...], ...]
    default_us: tuple[float, ...]
    best_us: tuple[float, ...]
    decision: Mapping[str, object]
    speedup: float
    speedup_low: float
    speedup_high: float
    measured: int
    failures: Mapping[str, int]  # by error class
    seconds: float
    note: str


@dataclass(frozen=True)
class TuneResult:
    """A whole run."""

    model: str
    target: str
    log: str  # the directory records were written to
    tasks: tuple[TaskResult, ...]
    skipped: tuple[Mapping[str, object], ...]  # readable, count, reason
    lookup: Mapping[str, object]  # what the logs that were read came to
    budget_s: float
    seconds: float
    threads: int
    worker_restarts: int
    interrupted: bool

    @property
    def improved(self) -> tuple[TaskResult, ...]:
        return tuple(t for t in self.tasks if t.outcome == IMPROVED)

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

    def to_plain(self) -> dict[str, object]:
        body = dataclasses.asdict(self)
        return {**body, "measured": self.measured, "failures": self.failures}

    def __str__(self) -> str:
        lines = [_line(t) for t in self.tasks]
        lines += [f"  skipped       {s['count']:>3} x {s['readable']}: {s['reason']}" for s in self.skipped]
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """One sentence, "nothing improved" included."""
        failed = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items())) or "none failed"
        trials = f"{self.measured} candidates measured ({failed}) in {self.seconds:.0f} s"
        if self.interrupted:
            trials += ", interrupted"
        if not self.tasks:
            return f"nothing to tune: no function has more than one decision ({len(self.skipped)} skipped)"
        if not self.improved:
            return f"nothing improved: the default of each of {len(self.tasks)} tasks stands, {trials}"
        return f"{len(self.improved)} of {len(self.tasks)} tasks improved, {trials}; records are in {self.log}"


def _line(task: TaskResult) -> str:
    gain = f"{task.speedup:.3f}x (at least {task.speedup_low:.3f}x)" if task.outcome == IMPROVED else task.note
    return f"  {task.outcome:<12}  {task.count:>3} x {task.readable}: {gain}"
