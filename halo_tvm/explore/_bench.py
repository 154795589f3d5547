"""The lab behind `measure` and `compare`: one for the session, started when it is first needed."""

from __future__ import annotations

import atexit
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ..config import TuneConfig
from ..errors import EnvironmentProblem
from ..records.decision import decision_to_plain
from ..targets import Target, can_run_here
from ..tir_schedules import RULES
from ..tuning.measure import make_lab
from ..tuning.measure.lab import Lab
from ..tuning.model import options_of
from ..tuning.place import check_first_gpu
from ..tuning.task import Task as TuningTask
from . import _cells
from ._builds import rule_for
from ._tasks import Task
from .any_rule import AnyDecision, AnyRule

_ANY = AnyRule.__module__


@dataclass(frozen=True)
class _Kind:
    """What must be the same for two measurements to share a process."""

    target: Target
    modules: tuple[str, ...]
    cold: bool
    timeout_s: float


_open: dict[_Kind, Lab] = {}


@contextmanager
def bench(task: Task, *, cold: bool, timeout_s: float) -> Iterator[Lab]:
    """A lab for the task's target that knows the rules of this session; it ends with the session.

    An interruption ends it too: nobody knows what it was in the middle of.
    """
    answer = can_run_here(task.target)
    if not answer:
        raise EnvironmentProblem(
            f"measuring needs a target that runs here, but {task.target.name} does not: {answer.reason}: "
            "use show and build, which need no device"
        )
    if task.target.spec.gpu:
        check_first_gpu(task.target)
    kind = _Kind(task.target, (_ANY, *_cells.registered()), cold, timeout_s)
    if kind not in _open:
        close()  # one at a time: two would take each other's cores and memory
        _open[kind] = _start(kind)
    try:
        yield _open[kind]
    except KeyboardInterrupt:
        close()
        raise


def close() -> None:
    """End the measurement process; the next measurement starts another."""
    while _open:
        _, lab = _open.popitem()
        lab.__exit__(None, None, None)


def for_bench(task: Task) -> TuningTask:
    """The task as the lab sees it: under the rule that stands for all, so that any rule's decisions may race."""
    default = candidate(task, task.default)
    # A lab keeps what it built for a key: another rule's default is another task to it.
    fields = f"{task.key} {task.rule.name} {json.dumps(decision_to_plain(task.default))}"
    return replace(
        task.tuning,
        key=hashlib.sha256(fields.encode()).hexdigest()[:20],
        rule=RULES[AnyRule.name],
        default=default,
        space=(default,),
    )


def candidate(task: Task, decision: object) -> AnyDecision:
    return AnyDecision.of(rule_for(task, decision), decision)


def _start(kind: _Kind) -> Lab:
    o = options_of(TuneConfig(model="explore"), kind.target, kind.modules)
    options = replace(o.lab, timeout_s=kind.timeout_s, cold_cache=kind.cold)
    lab = make_lab(kind.target, options, seed=o.seed, l3_bytes=o.l3_bytes)
    return lab.__enter__()


atexit.register(close)
