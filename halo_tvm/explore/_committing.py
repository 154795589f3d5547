"""Keeping a decision: only one that was confirmed to be faster than what `compile` would take without it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from ..errors import Declined, UsageError
from ..lookup import fingerprint_of
from ..passes.schedule import rule_for as rule_of_target
from ..records.decision import decision_to_plain
from ..records.home import check_writable_log, user_logs
from ..records.log import commit as append
from ..records.record import IMPROVED, Record
from ..records.workload import family_of
from ..tuning.recording import versions
from ._measuring import Comparison, compare
from ._tasks import Task

CONFIRMED_ROUNDS = 12  # as the tuner's quick effort
_STAGE = "explore"


def commit(
    task: Task, decision: object, *, log: str | Path | None = None, comparison: Comparison | None = None
) -> Path:
    """Write `decision` to a tuning log, by default the user's; returns the file. `compile` then uses it.

    It is compared with the default at all sizes of the task first, unless `comparison` already did. `UsageError`
    when it is not faster beyond doubt, or when `compile` would not ask the decision's rule.
    """
    directory = Path(log) if log is not None else user_logs()
    check_writable_log(directory)
    _check_rule(task, decision)
    if comparison is None:
        comparison = compare(task, decision)
    _check_comparison(task, decision, comparison)
    if not comparison.is_faster:
        raise UsageError(
            f"expected a decision that is faster than the default beyond doubt, but ({task.describe(decision)}) is "
            f"{comparison.speedup:.3f}x as fast with a lower bound of {comparison.low:.3f}: nothing is written; "
            "measure with more rounds, or keep the default"
        )
    family, extents = family_of(task.func)
    fingerprint = fingerprint_of(task.target)
    record = Record(
        workload=task.key,
        readable=task.name,
        rule=task.rule.name,
        rule_version=task.rule.version,
        decision=decision_to_plain(decision),
        outcome=IMPROVED,
        target=fingerprint.facts(),
        versions=versions(),
        sizes=comparison.task.tuning.sizes,
        candidate_us=_rounded(comparison.b_us),
        default_us=_rounded(comparison.a_us),
        speedup=round(comparison.speedup, 4),
        speedup_low=round(comparison.low, 4),
        timestamp=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        family=family,
        extents=extents,
        stage=_STAGE,
    )
    return append(directory, fingerprint, [record])


def _check_rule(task: Task, decision: object) -> None:
    """`compile` looks up records of one rule only: the first of the target's list that serves the function."""
    try:
        asked = rule_of_target(task.func, task.target).rule
    except Declined as declined:
        raise UsageError(
            f"expected a function that a rule of {task.target.name} serves, but none does: {declined}: "
            "commit decisions of other tasks"
        ) from declined
    if not isinstance(decision, asked.Decision) or task.rule is not asked:
        raise UsageError(
            f"expected a decision of {asked.name}, the rule that compile asks for {task.name}, found "
            f"{decision!r} under {task.rule.name}: to ship another rule, make it a plug-in that its target lists"
        )


def _check_comparison(task: Task, decision: object, comparison: Comparison) -> None:
    c = comparison
    if c.task.key != task.key or c.task.target != task.target or c.a != task.default or c.b != decision:
        raise UsageError(
            f"expected a comparison of ({task.describe(decision)}) with the default of this task, found {c!r}: "
            "give explore.compare(task, decision), or no comparison"
        )
    if c.task.sizes != task.sizes or c.rounds < CONFIRMED_ROUNDS:
        raise UsageError(
            f"expected a comparison at all sizes of the task with at least {CONFIRMED_ROUNDS} rounds, found "
            f"{c.rounds} rounds at {list(c.task.sizes)}: compare again, or give no comparison"
        )


def _rounded(samples: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(us, 3) for us in row) for row in samples)
