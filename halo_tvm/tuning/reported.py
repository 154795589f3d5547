"""A tuning run in the report's schema, for tables, files and other programs."""

from __future__ import annotations

import shlex

from ..config import TuneConfig
from ..report import schema
from ..report.host import describe_host
from . import result as r


def as_report(result: r.TuneResult, config: TuneConfig | None = None) -> schema.TuneResult:
    """The run as a result of kind "tune"; latencies are weighted means over a task's sizes.

    With the options of the run, the notes end with what to do next.
    """
    lookup = {name: found for name, found in result.lookup.items() if name != "directories"}  # no paths
    if "reasons" in lookup:
        lookup["reasons"] = len(lookup["reasons"])
    skipped = [f"skipped {s['count']} x {s['readable']}: {s['reason']}" for s in result.skipped]
    following = [] if config is None else next_steps(result, config)
    return schema.TuneResult(
        model=f"{len(result.models)} models" if result.models else result.model,
        target=result.target,
        seconds=result.seconds,
        host=describe_host(),
        tasks=tuple(_task(t) for t in result.tasks),
        notes=(result.summary(), *result.notes, *skipped, *following),
        models=result.models,
        stages=result.stages,
        measured=result.measured,
        failures=result.failures,
        skipped=result.skipped,
        lookup=lookup,
        run=result.run,
        resumed=result.resumed,
        interrupted=result.interrupted,
        budget_s=result.budget_s,
        threads=result.threads,
        worker_restarts=result.worker_restarts,
        rank_correlation=result.rank_correlation,
        drift=result.drift,
        exit_code=result.exit_code,
        build_only=result.build_only,
    )


def next_steps(result: r.TuneResult, config: TuneConfig) -> list[str]:
    """The commands that use what was committed; none where nothing was."""
    if not result.improved:
        return []
    models = [m.model for m in result.models if not m.failure] or list(config.model[:1])
    words = ["halo-tvm", "compile", "--model", models[0] if len(models) == 1 else "MODEL"]
    words += [] if config.target == "cpu" else ["--target", config.target]
    words += ["--precision", config.precision] if config.precision else []
    words += ["--force-precision"] if config.force_precision else []
    words += [] if config.log is None else ["--log", config.log]
    return [f"next: {shlex.join(words)}"]


def _task(task: r.TaskResult) -> schema.TaskResult:
    improved = task.outcome == r.IMPROVED
    return schema.TaskResult(
        task=task.readable,
        workload=task.key,
        trials=task.measured,
        failed=sum(task.failures.values()),
        default_us=task.before_us,
        best_us=r.weighted(task.best_us, task.weights),
        ratio=schema.Interval(task.speedup, task.speedup_low, task.speedup_high, 0.95) if improved else None,
        committed=improved,
        reason=f"{task.outcome}: {task.note}",
        rule=task.rule,
        count=task.count,
        saved_us=task.saved_us,
        stage=task.stage,
        ended=task.ended,
        stages=task.stages,
        failures=task.failures,
        rank_correlation=task.rank_correlation,
        predicted_gain=task.predicted_gain,
        roofline_us=r.weighted(task.roofline_us, task.weights) if task.roofline_us else None,
        decision=task.decision,
        models=task.models,
        seconds=task.seconds,
        candidates=task.candidates,
    )
