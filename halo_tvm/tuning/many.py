"""Many models in one run: lowered one after another, their tasks merged, what it came to told by model."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import HaloError, NoValidTrial
from ..interrupts import noted
from ..records.record import Size
from ..report import tuned as r
from ..report.parts import Skipped, TunedModel
from .model_list import ListedModel
from .result import without_trial
from .task import Task, Tasks

_BUG = 1  # the exit code of an error that is no HaloError, as on the command line
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lowered:
    """One model: its tasks, or why there are none."""

    model: str
    weight: int = 1
    tasks: Tasks = Tasks((), ())
    source: str = ""  # a hash of what it was made from
    failure: str = ""
    exit_code: int = 0


def lower_each(
    models: Sequence[ListedModel], lower: Callable[[ListedModel], tuple[Tasks, str]], say: Callable[[str], None]
) -> list[Lowered]:
    """The tasks of every model, with a hash of its source, as `lower` makes them.

    One that fails is recorded with its sentence and never stops the others. Only tasks are kept: they hold
    functions, but no weights.
    """
    lowered = []
    with noted() as interrupts:
        for i, entry in enumerate(models, 1):
            say(f"model {i}/{len(models)}: {entry.label}")
            made = _lowered(entry, lower)
            if interrupts:  # a library made an error of its own out of it, or a child process was interrupted with us
                raise KeyboardInterrupt
            if made.failure:
                say(f"model {i}/{len(models)}: {entry.label} is left out: {made.failure}")
            lowered.append(made)
            gc.collect()  # graph and weights of this model go before the next comes
    return lowered


def _lowered(entry: ListedModel, lower: Callable[[ListedModel], tuple[Tasks, str]]) -> Lowered:
    try:
        return Lowered(entry.label, entry.weight, *lower(entry))
    except HaloError as error:
        return Lowered(entry.label, entry.weight, failure=_one_line(error), exit_code=error.exit_code)
    except Exception as bug:  # noqa: BLE001 - one model's boundary: the others are tuned all the same
        _log.debug("lowering %s", entry.label, exc_info=True)
        sentence = (
            f"internal error: {type(bug).__name__}: {_one_line(bug)[:300]}: this is a bug, please report it with "
            "the output under HALO_TVM_LOG=debug"
        )
        return Lowered(entry.label, entry.weight, failure=sentence, exit_code=_BUG)


def merged(models: Sequence[Lowered]) -> Tasks:
    """The tasks of all models, as `weighted` does it."""
    return weighted((model.tasks, model.weight) for model in models)


def weighted(parts: Iterable[tuple[Tasks, int]]) -> Tasks:
    """Tasks with their weights as one, by workload key, heaviest count first.

    Counts are call sites times the weight, added up. Parts may bound the same function
    differently: it is timed at the sizes of all of them, each with its share of the calls.
    """
    tasks: dict[str, Task] = {}
    skipped: dict[tuple[str, str], Skipped] = {}
    for part, weight in parts:
        for task in part.tasks:
            own = replace(task, count=task.count * weight)
            tasks[task.key] = _joined(tasks[task.key], own) if task.key in tasks else own
        for skip in part.skipped:
            name = (skip.readable, skip.reason)
            before = skipped[name].count if name in skipped else 0
            skipped[name] = replace(skip, count=before + skip.count * weight)
    order = sorted(tasks.values(), key=lambda t: (-t.count, t.key))
    return Tasks(tuple(order), tuple(skipped.values()))


def _joined(a: Task, b: Task) -> Task:
    weights: dict[tuple[int, ...], float] = {}
    for task in (a, b):
        for size in task.sizes:
            weights[size.dims] = weights.get(size.dims, 0.0) + size.weight * task.count / (a.count + b.count)
    # Lightest first: `take` runs a candidate at the last one.
    sizes = tuple(Size(dims, weight) for dims, weight in sorted(weights.items(), key=_work))
    return replace(a, count=a.count + b.count, sizes=sizes, checked=tuple(dict.fromkeys((*a.checked, *b.checked))))


def _work(entry: tuple[tuple[int, ...], float]) -> tuple[int, tuple[int, ...]]:
    dims, _ = entry
    return math.prod(dims), dims


def by_model(
    result: r.TuneResult, models: Sequence[Lowered], tasks: Tasks, failure: NoValidTrial | None
) -> r.TuneResult:
    """`result` with the weights of sizes, which models use each task, and what it came to for each model."""
    sites = {model.model: {t.key: t.count for t in model.tasks.tasks} for model in models}
    weights = {t.key: {s.dims: s.weight for s in t.sizes} for t in tasks.tasks}
    found = tuple(
        replace(
            t,
            weights=tuple(weights[t.key][dims] for dims in t.sizes) if t.key in weights else t.weights,
            models={name: counts[t.key] for name, counts in sites.items() if t.key in counts},
        )
        for t in result.tasks
    )
    by_key = {t.key: t for t in found}
    summaries = tuple(_summary(model, sites[model.model], by_key, failure) for model in models)
    return replace(result, tasks=found, models=summaries)


def _summary(
    model: Lowered, sites: Mapping[str, int], tasks: Mapping[str, r.TaskResult], failure: NoValidTrial | None
) -> TunedModel:
    if model.failure:
        return TunedModel(model.model, failure=model.failure, exit_code=model.exit_code)
    own = [tasks[key] for key in sites if key in tasks]
    sentence, code = "", 0
    if sites and failure is not None:
        sentence, code = _one_line(failure), failure.exit_code
    elif without_trial(own):
        notes = "; ".join(dict.fromkeys(t.note for t in own))
        sentence, code = f"not a single candidate could be measured: {notes[:300]}", NoValidTrial.exit_code
    before_us = sum(sites[t.key] * t.before_us for t in own)
    after_us = sum(sites[t.key] * t.after_us for t in own)
    return TunedModel(
        model=model.model,
        tasks=len(sites),
        shared=sum(len(t.models) > 1 for t in own),
        improved=sum(t.outcome == r.IMPROVED for t in own),
        before_us=before_us,
        after_us=after_us,
        speedup=before_us / after_us if after_us else None,
        failure=sentence,
        exit_code=code,
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
