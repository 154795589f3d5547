"""When a tuning run is an error, what it read, and what to do behind one that found something."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields

from ..config import TOML_NAME, CompileConfig, TuneConfig, words_of
from ..errors import NoValidTrial
from ..records.log import LookupReport
from ..report.tuned import FAILED, UNTRIED, TaskResult, TuneResult
from .search.agenda import AT_ROOFLINE
from .search.outcome import BUDGET, ROOFLINE, Confirmed
from .search.rounds import Search


def without_trial(tasks: Sequence[TaskResult]) -> bool:
    """Whether trials of these tasks were made and not one could be measured, or built where nothing is measured."""
    tried = any(t.failures for t in tasks) or all(t.outcome == FAILED for t in tasks)
    return bool(tasks) and tried and not any(t.measured or t.built for t in tasks)


def refuse_without_trial(result: TuneResult) -> None:
    """`NoValidTrial`, with the reasons of the tasks that failed, for a run without a single measured trial."""
    if without_trial(result.tasks):
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.failures.items()))
        reasons = "; ".join(dict.fromkeys(t.note for t in result.tasks if t.outcome == FAILED))
        raise NoValidTrial(
            "at least one candidate was expected to be measured, but all of them failed "
            f"({kinds or 'no task could be opened'}): {reasons[:400]}: "
            "run `halo-tvm doctor`, or give a larger --budget"
        )


def lookup_of(report: LookupReport) -> dict[str, object]:
    """What the logs that were read came to, without their paths."""
    found = report.to_plain()
    del found["directories"]
    return {**found, "reasons": len(report.reasons)}


def next_steps(result: TuneResult, config: TuneConfig) -> list[str]:
    """The command that uses what was committed, and what reaches the tasks that were left."""
    steps = [f"next: {_compile_command(result, config)}"] if result.improved else []
    if result.interrupted or config.trials is not None or config.effort == "none":
        return steps
    left = sum(task.outcome == UNTRIED for task in result.tasks)
    tried = any(task.measured or task.built or task.failures for task in result.tasks)
    if not tried and any(task.ended == BUDGET for task in result.tasks):
        steps.append(f"the budget ended before a candidate was measured: give a larger --budget than {config.budget}")
    elif left:
        steps.append(
            f"{left} of {len(result.tasks)} tasks were not reached: give a larger --budget than {config.budget}"
        )
    return steps


def _compile_command(result: TuneResult, config: TuneConfig) -> str:
    """`halo-tvm compile` with the options that both verbs have: others would make other functions, without records."""
    models = [m.model for m in result.models if not m.failure] or list(config.model[:1])
    shared = {f.name for f in fields(config)} & {f.name for f in fields(CompileConfig)} - {"model"}
    if config.config == TOML_NAME:  # `compile` reads it as well
        shared -= {"config"}
    name = models[0] if len(models) == 1 else "MODEL"
    return shlex.join(["halo-tvm", "compile", "--model", name, *words_of(config, shared)])


def why_kept(search: Search, confirmed: Confirmed | None) -> str:
    """Why the default stands after a search; `confirmed` is its best candidate, measured again beside the default."""
    if confirmed is None:
        if search.ended == ROOFLINE:
            return f"it is within {AT_ROOFLINE - 1:.0%} of its roofline"
        measured = search.tally.measured
        return (
            f"none of {measured} candidates was faster" if measured else f"no candidate was measured ({search.ended})"
        )
    if confirmed.speedup < 1:
        return f"the best candidate was slower when it was confirmed ({confirmed.speedup:.3f}x)"
    bound = f"lower bound {confirmed.speedup_low:.3f}"
    return f"the best candidate's speed-up of {confirmed.speedup:.3f}x is not certain ({bound})"
