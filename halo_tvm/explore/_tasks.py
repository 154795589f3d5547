"""Tasks to look at: a model's functions that have something to decide, and the decisions of one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import tvm
from tvm import tirx

from ..compilation import Compilation
from ..config import CompileConfig
from ..errors import Declined, UnknownName, UsageError
from ..imported import ImportedModel
from ..importers import import_model
from ..models import FAMILIES
from ..models.builder import RandomWeights
from ..phase_reports import Reports
from ..phases import lower
from ..plugins import load_plugins
from ..records.decision import decision_to_plain
from ..records.record import Size
from ..targets import Target, resolve
from ..tir_schedules import RULES, Rule
from ..tuning.sizes import symbols
from ..tuning.task import Skipped, tasks_of
from ..tuning.task import Task as TuningTask
from ._table import Table, as_html, fields_text


@dataclass(frozen=True)
class Task:
    """One function of a model before scheduling, with the rule that serves it.

    `tuning` is what the tuner knows about it. Two tasks are equal when they are the same function, rule and target.
    """

    model: str
    target: Target
    tuning: TuningTask = dataclasses.field(compare=False)
    key: str
    rule: Rule

    @classmethod
    def of(cls, model: str, target: Target, task: TuningTask) -> Task:
        return cls(model, target, task, task.key, task.rule)

    @property
    def name(self) -> str:
        """The function in a line: operator, shapes, dtype, what is fused to it."""
        return self.tuning.readable

    @property
    def func(self) -> tirx.PrimFunc:
        """The unscheduled function."""
        return self.tuning.func

    @property
    def default(self) -> object:
        """The rule's analytic decision: what `compile` takes without a record."""
        return self.tuning.default

    @property
    def space(self) -> tuple[object, ...]:
        """Every decision of the rule's space, the default first."""
        return self.tuning.space

    @property
    def calls(self) -> int:
        """Call sites in the model."""
        return self.tuning.count

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """Values of the symbolic dimensions it is timed at, in the order of `dims`."""
        return tuple(size.dims for size in self.tuning.sizes)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the symbolic dimensions."""
        return tuple(str(v.name) for v in symbols(self.func))

    @property
    def fields(self) -> dict[str, tuple[object, ...]]:
        """The fields of a decision and the values the space has for each, the default's first."""
        names = [f.name for f in dataclasses.fields(self.default)]
        return {name: tuple(dict.fromkeys(getattr(d, name) for d in self.space)) for name in names}

    def decide(self, **fields: object) -> object:
        """The default with some fields changed; it need not be in the space, the rule says whether it applies."""
        known = {f.name for f in dataclasses.fields(self.default)}
        for name in fields:
            if name not in known:
                raise UnknownName(f"field of a decision of {self.rule.name}", name, known)
        return replace(self.default, **fields)

    def describe(self, decision: object) -> str:
        """What `decision` changes in the default: "mr=6, unroll=2"; another rule's decision with its rule's name."""
        if not isinstance(decision, self.rule.Decision):
            return f"{rule_of(decision).name}: {fields_text(decision_to_plain(decision))}"
        default = decision_to_plain(self.default)
        changed = {k: v for k, v in decision_to_plain(decision).items() if default[k] != v}
        return fields_text(changed) or "default"

    def at(self, sizes: Sequence[Sequence[int]]) -> Task:
        """The same task timed at these sizes only, with equal weights."""
        wanted = tuple(dict.fromkeys(tuple(size) for size in sizes))
        if not wanted or any(len(s) != len(self.dims) or min(s, default=1) < 1 for s in wanted):
            raise UsageError(
                f"expected sizes with a positive number for each dimension of ({', '.join(self.dims)}), "
                f"found {[list(s) for s in sizes]}: give for example sizes=[{self.sizes[0]}]"
            )
        kept = tuple(Size(dims, 1 / len(wanted)) for dims in wanted)
        return replace(self, tuning=replace(self.tuning, sizes=kept))

    def with_rule(self, rule: str | type[Rule]) -> Task:
        """The same function under another rule, for example one of a notebook's cell."""
        name = rule if isinstance(rule, str) else rule.name
        if name not in RULES:
            raise UnknownName("schedule rule", name, RULES)
        other = RULES[name]
        try:
            default = other.default(self.func, self.target)
            space = tuple(dict.fromkeys((default, *other.space(self.func, self.target))))
        except Declined as declined:
            raise UsageError(
                f"expected a rule that serves {self.name}, but {name} declines it: {declined}: choose another task"
            ) from declined
        return Task.of(self.model, self.target, replace(self.tuning, rule=other, default=default, space=space))

    def __repr__(self) -> str:
        return f"<Task {self.name}: {self.rule.name}, {len(self.space)} decisions, {self.calls} calls>"

    def _repr_html_(self) -> str:
        default = decision_to_plain(self.default)
        rows = [[name, default[name], ", ".join(map(str, values))] for name, values in self.fields.items()]
        title = f"{self.name}: rule {self.rule.name}, {len(self.space)} decisions, {self.calls} calls in {self.model}"
        return as_html(["field", "default", "values in the space"], rows, title)


class Tasks(Table, Sequence[Task]):
    """A model's tasks, the most often called first; `skipped` are the functions with nothing to decide."""

    def __init__(self, model: str, tasks: Sequence[Task], skipped: Sequence[Skipped]) -> None:
        self.model = model
        self._tasks = tuple(tasks)
        self.skipped = tuple(skipped)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)

    def find(self, text: str) -> Task:
        """The first task whose name or rule contains `text`; `UnknownName` lists the names."""
        for task in self._tasks:
            if text in task.name or text == task.rule.name:
                return task
        raise UnknownName("task", text, [task.name for task in self._tasks])

    def _table(self) -> tuple[list[str], list[list[object]], str]:
        rows: list[list[object]] = [
            [i, t.name, t.rule.name, t.calls, len(t.space), t.key] for i, t in enumerate(self._tasks)
        ]
        rest = f", {len(self.skipped)} functions with nothing to decide" if self.skipped else ""
        return (
            ["", "task", "rule", "calls", "decisions", "workload key"],
            rows,
            f"{self.model}: {len(rows)} tasks{rest}",
        )


def tasks(
    model: str | ImportedModel | tvm.IRModule,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    shape: Sequence[str] = (),
    seed: int = 0,
) -> Tasks:
    """What `model` has to decide: a name or file as `--model` takes it, an imported model, or a module of functions.

    `threads` is how many cores decisions assume and measurements use. Raises what `compile` raises for the model.
    """
    chosen = resolved(target, threads)
    if isinstance(model, tvm.IRModule):
        name, mod, ranges = "module", model, {}
    else:
        imported = imported_model(model, shape, seed)
        name, ranges = imported.name, imported.ranges
        mod, _ = lowered(imported, chosen)
    found = tasks_of(mod, chosen, ranges)
    return Tasks(name, [Task.of(name, chosen, task) for task in found.tasks], found.skipped)


def builtin(family: str, **sizes: object) -> ImportedModel:
    """A built-in architecture of other sizes with random weights: `builtin("gpt2", layers=2, hidden=256, heads=4)`.

    The rest is that of the family's first preset. `UnknownName` for a family or a size that there is not.
    """
    if family not in FAMILIES:
        raise UnknownName("model family", family, FAMILIES)
    chosen = FAMILIES[family]
    first = next(iter(chosen.presets.values()))
    known = {f.name for f in dataclasses.fields(first)}
    for name in sizes:
        if name not in known:
            raise UnknownName(f"size of {family}", name, known)
    text = fields_text(sizes)
    return chosen.build(
        f"{family}({text})", replace(first, **sizes), RandomWeights(0), {"kind": "builtin", "name": family}
    )


def resolved(target: str | Target, threads: int | None) -> Target:
    if isinstance(target, Target):
        return target if threads is None else replace(target, cores=threads)
    load_plugins()
    return resolve(target, cores=threads)


def imported_model(model: str | ImportedModel, shape: Sequence[str] = (), seed: int = 0) -> ImportedModel:
    return import_model(model, seed=seed, shapes=tuple(shape)) if isinstance(model, str) else model


def lowered(model: ImportedModel, target: Target) -> tuple[tvm.IRModule, Reports]:
    """The module before scheduling and the reports of the passes, at the default level."""
    return lower(model, Compilation.of(CompileConfig(model=model.name, records=False), target))


def rule_of(decision: object) -> Rule:
    """The rule whose decision this is, by its class; `UsageError` for anything else."""
    for rule in RULES.values():
        if isinstance(decision, rule.Decision):
            return rule
    raise UsageError(
        f"expected a decision of a schedule rule, found {decision!r}: take one of task.space, or task.decide(...)"
    )
