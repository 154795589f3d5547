"""What `compile` asks of an artifact before it is put in its place: that it computes what its source computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ..artifact import cost_of, text_cost_of
from ..errors import Declined
from ..targets import Target, can_run_here
from .validation import validate_artifact


def acceptance(
    target: Target, threads: int | None, divergence: float | None = None
) -> Callable[[Path], Mapping[str, object]]:
    """`validate_artifact` for artifacts of `target`; `Declined` where they cannot run.

    `divergence` is what a language model may lose at most, in nats per token; None: what its precision may.
    """
    runnable = can_run_here(target)
    if not runnable:
        raise Declined(runnable.reason)
    return partial(validate_artifact, threads=threads, divergence=divergence)


def in_words(report: Mapping[str, object]) -> str:
    """A report of `validate_artifact` that passed, in one line."""
    rows = report["outputs"]
    worst = max(row["max_abs_error"] for row in rows)
    text = f"passed: {len(rows)} outputs in {report['cases']} cases, largest error {worst:.3g}"
    costs = [] if report["tolerance"] is None else [cost_of(report)]
    costs += [text_cost_of(report)] if report["text"] else []
    costs += [f"drawn at random and not compared: {', '.join(report['drawn'])}"] if report["drawn"] else []
    return "; ".join([text, *costs])
