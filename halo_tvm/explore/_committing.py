"""Keeping a decision: only one that was confirmed to be faster than what `compile` would take without it."""

from __future__ import annotations

from pathlib import Path

from ..errors import Declined, UsageError
from ..passes.schedule import rule_for as rule_of_target
from ..records.home import check_writable_log, user_logs
from ..records.log import commit as append
from ..tuning.place import fingerprint_here
from ..tuning.recording import Recorder
from ..tuning.search.outcome import Confirmed
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
    c = comparison
    fingerprint = fingerprint_here(task.target)
    confirmed = Confirmed(decision, c.a_us, c.b_us, c.speedup, c.low, c.high, stage=_STAGE)
    return append(directory, fingerprint, [Recorder(fingerprint, run="", seed=0).winner(task.tuning, confirmed)])


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
    if not c.cold:
        raise UsageError(
            "expected a comparison with weights from memory, as in a model, found one with cold=False: compare again "
            "without it, or give no comparison"
        )
    if c.task.sizes != task.sizes or c.rounds < CONFIRMED_ROUNDS:
        raise UsageError(
            f"expected a comparison at all sizes of the task with at least {CONFIRMED_ROUNDS} rounds, found "
            f"{c.rounds} rounds at {list(c.task.sizes)}: compare again, or give no comparison"
        )
