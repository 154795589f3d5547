"""`tune --build-only`: candidates are built for a target that cannot be measured here; nothing is timed or recorded.

Every decision of a task is ranked by the rule's own model; the first of every task are built, then the second, and
so on, within the budget. What comes out says what compiles, and of a GPU's kernels what they take of a multiprocessor;
without the GPU's own compiler, that a candidate is source which no compiler has seen. The order is the model's opinion:
only a measurement makes a record.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

from ..errors import NoValidTrial
from ..phase_reports import DeviceCode, read
from ..records.decision import decision_to_plain
from ..report import tuned as r
from ..report.host import describe_host
from ..report.parts import BuiltCandidate
from ..targets import Target, usable_cpus
from .budget import Clock
from .measure.builders import Builders, Job
from .measure.confined import arguments_of
from .measure.lab import Failure
from .measure.requests import build_timeout_s, task_request
from .measure.scratch import Scratch
from .options import TuneOptions
from .progress import BuildProgress
from .search.analytic import predicted_speedups, predicted_us
from .task import Task, Tasks

_OF_A_TASK = 4  # where no number of trials is given
_MOST_BUILDERS = 4
_BUILDER_BYTES = 2 << 30


@dataclass
class _Ranked:
    """One task: its decisions as the rule's model orders them, and what became of those that were built."""

    task: Task
    order: list[object]
    modelled: bool
    found: list[BuiltCandidate] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


def build_candidates(tasks: Tasks, target: Target, options: TuneOptions, stream: TextIO | None = None) -> r.TuneResult:
    """Rank the decisions of all tasks, build the best of each, and tell what came of it.

    `options.trials` in all, else `_OF_A_TASK` of each; none is begun when the budget is spent. Ctrl-C ends the builders
    and keeps what was built: the result says `interrupted`. `NoValidTrial` when candidates were begun and not one could
    be built.
    """
    clock = Clock(options.budget_s)
    most = options.effort.most if options.trials else min(_OF_A_TASK, options.effort.most)
    count = sum(min(most, len(task.space)) for task in tasks.tasks)
    count = min(count, options.trials or count)
    with BuildProgress(len(tasks.tasks), count, options.budget_s, stream) as progress:
        progress.stage("ranking")  # some hundreds of decisions a task
        ranked = [_rank(task, target) for task in tasks.tasks]
        progress.stage("")
        turns = [(one, one.order[turn]) for turn in range(most) for one in ranked if turn < len(one.order)]
        queue, restarts, interrupted = turns[: options.trials], 0, False
        if queue:
            restarts, interrupted = _build_all(queue, target, options, progress, clock)
    result = r.TuneResult(
        model=options.model,
        target=target.key,
        host=describe_host(),
        log="",
        tasks=tuple(_result(one) for one in ranked),
        skipped=tasks.skipped,
        budget_s=options.budget_s,
        seconds=clock.elapsed_s,
        threads=options.threads,
        worker_restarts=restarts,
        interrupted=interrupted,
        build_only=True,
    )
    if result.failures and not interrupted and not any(t.built for t in result.tasks):
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.failures.items()))
        reasons = "; ".join(dict.fromkeys(c.failure for t in result.tasks for c in t.candidates))
        raise NoValidTrial(
            f"at least one candidate was expected to be built, but all of them failed ({kinds}): {reasons[:400]}: "
            "run `halo-tvm doctor`, or give a larger --budget"
        )
    return result


def _rank(task: Task, target: Target) -> _Ranked:
    scores, modelled = predicted_speedups(task, target, task.space)
    # Stable: of decisions that the model takes for equal, the one nearer the default goes first.
    order = [task.space[i] for i in np.argsort(-scores, kind="stable")]
    return _Ranked(task, order, modelled)


def _build_all(
    queue: list[tuple[_Ranked, object]], target: Target, options: TuneOptions, progress: BuildProgress, clock: Clock
) -> tuple[int, bool]:
    """Build in that order until the budget is spent: (how often a builder was started again, whether by Ctrl-C)."""
    count = min(len(usable_cpus()), _MOST_BUILDERS)
    timeout_s = build_timeout_s(target, options.timeout_s)
    memory = max(_BUILDER_BYTES, options.memory_bytes // count)
    requests = {one.task.key: task_request(one.task, target, options.vector_math) for one, _ in queue}
    scratch = Scratch()
    try:
        builders = Builders(count, arguments_of(memory, options.lab.file_bytes, options.modules), scratch.path)
        try:
            # A few at a time: what was not begun when the budget ends need not be taken back.
            waiting: list[tuple[_Ranked, object, Job]] = []
            for one, decision in queue:
                if clock.left_s <= 0.0:
                    break
                job = builders.submit(requests[one.task.key], decision_to_plain(decision), None, timeout_s)
                waiting.append((one, decision, job))
                if len(waiting) > count:
                    _take(*waiting.pop(0), target, progress)
            for entry in waiting:
                _take(*entry, target, progress)
        except KeyboardInterrupt:
            return builders.restarts, True
        finally:
            builders.close()
        return builders.restarts, False
    finally:
        scratch.close()


def _take(one: _Ranked, decision: object, job: Job, target: Target, progress: BuildProgress) -> None:
    """Wait for one library, note what it holds, and let it go."""
    us = predicted_us(one.task, target, decision) if one.modelled else None
    plain, rank = decision_to_plain(decision), len(one.found) + 1
    try:
        library = job.library(None)
    except Failure as failure:
        one.failures[failure.kind] += 1
        one.found.append(BuiltCandidate(rank, plain, us, failure=f"{failure.kind}: {failure}"))
        progress.built(one.task.key, one.task.readable, rank, failure.kind, str(failure))
        return
    library.path.unlink(missing_ok=True)
    device = read(DeviceCode, library.device)

    def most(*fields: str) -> int:
        return max((sum(getattr(kernel, name) for name in fields) for kernel in device.kernels), default=0)

    built = BuiltCandidate(
        rank,
        plain,
        us,
        registers=most("registers"),
        spill_bytes=most("spill_store_bytes", "spill_load_bytes"),
        shared_bytes=most("shared_bytes", "dynamic_shared_bytes"),
        build_s=library.build_s,
        source_only=device.reason,
    )
    one.found.append(built)
    progress.built(one.task.key, one.task.readable, rank)


def _result(one: _Ranked) -> r.TaskResult:
    task, built = one.task, sum(not c.failure for c in one.found)
    by = f"by the model of {task.rule.name}" if one.modelled else "by nearness to the default: its rule has no model"
    source = "as source only " if any(c.source_only for c in one.found) else ""
    note = f"{built} of {len(task.space)} candidates built {source}and ranked {by}"
    return r.TaskResult(
        key=task.key,
        readable=task.readable,
        rule=task.rule.name,
        count=task.count,
        outcome=r.UNMEASURED,
        sizes=(),
        default_us=(),
        best_us=(),
        decision=decision_to_plain(task.default),
        speedup=1.0,
        speedup_low=1.0,
        speedup_high=1.0,
        measured=0,
        failures=dict(one.failures),
        seconds=sum(c.build_s for c in one.found),
        note=note if one.found else "no candidate was built: the budget, the trials or the effort ended before it",
        candidates=tuple(one.found),
    )
