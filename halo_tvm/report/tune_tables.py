"""A tuning run as tables: models, tasks by time saved, stages."""

from __future__ import annotations

from collections.abc import Mapping

from .parts import BuiltCandidate, StageTotal, TunedModel
from .table import Table, number
from .tuned import TaskResult, TuneResult, weighted

_NAME, _CELL = 72, 60  # columns of a name, of a reason; JSON and notes have the whole of what is longer


def tuned_tables(result: TuneResult) -> list[Table]:
    """The models where there are several, the tasks, the stages where any ran; the notes stand with the tasks.

    Of a run that built only, the candidates stand in the place of the tasks.
    """
    tables = [_models(result)] if result.models else []
    tables.append(_built(result) if result.build_only else _tasks(result))
    if result.stages:
        tables.append(_stages(result))
    return tables


def _tasks(result: TuneResult) -> Table:
    rows = [_task(t) for t in sorted(result.tasks, key=lambda t: (-t.saved_us, -t.count * t.before_us))]
    improved = f"{len(result.improved)} of {len(result.tasks)} tasks improved in {result.seconds:.0f} s"
    header = ("task", "calls", "trials", "failed", "default us", "best us", "ratio", "saved us", "outcome")
    kept = [(t.readable, _reason(t)) for t in result.tasks if not t.improved]
    reasons = tuple(f"{name}: {reason}" for name, reason in kept if _short(reason) != reason)
    return Table(f"{_of(result)}: {improved}", header, tuple(rows), (*reasons, *_notes(result)))


def _task(t: TaskResult) -> tuple[str, ...]:
    by = f" ({t.stage})" if t.stage else ""
    return (
        _short(t.readable, _NAME),
        str(t.count),
        str(t.measured),
        _failed(t.failed, t.failures),
        number(t.before_us or None, ".1f"),
        number(weighted(t.best_us, t.weights) or None, ".1f"),
        f"{t.speedup:.2f} ({t.speedup_low:.2f} to {t.speedup_high:.2f})" if t.improved else "-",
        number(t.saved_us, ".0f") if t.saved_us else "-",
        f"committed{by}" if t.improved else _short(_reason(t)),
    )


def _built(result: TuneResult) -> Table:
    """The candidates of a run that measured nothing, which the title says."""
    header = ("task", "calls", "rank", "decision", "model us", "registers", "spills", "shared B", "outcome")
    rows = tuple(_candidate(t, c) for t in result.tasks for c in t.candidates)
    title = f"{_of(result)}: candidates built and ranked by their rules' models, not measured"
    untried = tuple(f"{t.readable}: {_reason(t)}" for t in result.tasks if not t.candidates)
    return Table(title, header, rows, (*untried, *_notes(result)))


def _candidate(t: TaskResult, c: BuiltCandidate) -> tuple[str, ...]:
    decision = " ".join(f"{name}={value}" for name, value in c.decision.items())
    built = "source only" if c.source_only else "built"
    return (
        _short(t.readable, _NAME),
        str(t.count),
        str(c.rank),
        _short(decision),
        number(c.predicted_us, ".1f"),
        str(c.registers) if c.registers else "-",
        str(c.spill_bytes) if c.registers else "-",
        str(c.shared_bytes) if c.registers else "-",
        _short(c.failure or f"{built}, not measured"),
    )


def _of(result: TuneResult) -> str:
    return f"{f'{len(result.models)} models' if result.models else result.model} for {result.target}"


def _reason(t: TaskResult) -> str:
    return f"{t.outcome}: {t.note}"


def _notes(result: TuneResult) -> tuple[str, ...]:
    """In a sentence what it came to, what was ignored, and which functions have nothing to tune."""
    skipped = (f"skipped {s.count} x {s.readable}: {s.reason}" for s in result.skipped)
    return (result.summary(), *result.notes, *skipped)


def _short(text: str, most: int = _CELL) -> str:
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."


def _failed(total: int, classes: Mapping[str, int]) -> str:
    return str(total) + (f" ({', '.join(f'{n} {kind}' for kind, n in sorted(classes.items()))})" if classes else "")


def _models(result: TuneResult) -> Table:
    failed = sum(bool(m.failure) for m in result.models)
    title = f"{len(result.models)} models" + (f", {failed} FAILED" if failed else "")
    header = ("model", "tasks", "shared", "improved", "before ms", "after ms", "speed-up", "outcome")
    note = (
        "before, after: measured tasks times their calls, as the kernels were timed one by one; the rest of a model is "
        "not in it"
    )
    tried = {name for t in result.tasks if t.measured or t.failed for name in t.models}
    failures = tuple(f"{m.model} FAILED: {m.failure}" for m in result.models if m.failure)
    rows = tuple(_model(m, m.model in tried, result.build_only) for m in result.models)
    return Table(title, header, rows, (*failures, note))


def _model(m: TunedModel, is_tried: bool, is_built: bool) -> tuple[str, ...]:
    if m.failure:
        outcome = f"FAILED with {m.exit_code}"
    elif m.improved:
        outcome = "tuned"
    else:
        outcome = "nothing improved" if is_tried else "not reached" if m.tasks else "nothing to tune"
        outcome = "not measured" if is_built and m.tasks else outcome
    return (
        m.model,
        str(m.tasks),
        str(m.shared),
        str(m.improved),
        number(m.before_us / 1000 if m.speedup else None),
        number(m.after_us / 1000 if m.speedup else None),
        f"{m.speedup:.3f}" if m.speedup else "-",
        outcome,
    )


def _stages(result: TuneResult) -> Table:
    header = ("stage", "measured", "failed", "winners", "saved us", "seconds")
    return Table("Stages", header, tuple(_stage(s) for s in result.stages), _quality(result))


def _stage(s: StageTotal) -> tuple[str, ...]:
    saved, seconds = number(s.saved_us, ".0f"), number(s.seconds, ".1f")
    return (s.stage, str(s.measured), str(s.failed), str(s.winners), saved, seconds)


def _quality(result: TuneResult) -> tuple[str, ...]:
    """How far the numbers and the ranking can be trusted."""
    notes = []
    if result.rank_correlation is not None:
        notes.append(f"rank correlation of predicted and measured: {result.rank_correlation:.2f} (Spearman)")
    if result.drift is not None:
        notes.append(f"the reference kernel drifted by {100 * result.drift:.1f} % over the run")
    if result.worker_restarts:
        notes.append(f"processes that measure were started again: {result.worker_restarts}")
    return tuple(notes)
