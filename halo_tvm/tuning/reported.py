"""A tuning run in the report's schema, for tables, files and other programs."""

from __future__ import annotations

from collections.abc import Sequence

from ..report import schema
from ..report.host import describe_host
from . import result as r


def as_report(result: r.TuneResult) -> schema.TuneResult:
    """The run as a result of kind "tune"; latencies are weighted means over a task's sizes."""
    skipped = [f"skipped {s['count']} x {s['readable']}: {s['reason']}" for s in result.skipped]
    return schema.TuneResult(
        model=result.model,
        target=result.target,
        seconds=result.seconds,
        host=describe_host(),
        tasks=tuple(_task(t) for t in result.tasks),
        notes=(result.summary(), *skipped),
    )


def _task(task: r.TaskResult) -> schema.TaskResult:
    improved = task.outcome == r.IMPROVED
    return schema.TaskResult(
        task=task.readable,
        workload=task.key,
        trials=task.measured,
        failed=sum(task.failures.values()),
        default_us=_mean(task.default_us),
        best_us=_mean(task.best_us),
        ratio=schema.Interval(task.speedup, task.speedup_low, task.speedup_high, 0.95) if improved else None,
        committed=improved,
        reason=f"{task.outcome}: {task.note}",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
