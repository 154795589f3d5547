"""Tasks: the distinct functions of a module that have something to decide, with the sizes they are timed at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import tvm
from tvm import ir, relax, tirx

from ..errors import Declined
from ..passes.graph_pass import is_part
from ..passes.schedule import rule_for
from ..passes.weights import num_inputs
from ..records.canonical import blocks_of, walk
from ..records.record import Size
from ..records.workload import describe, workload_key
from ..relay_ops.operator import OVERRIDE
from ..report.parts import Skipped
from ..targets import Target
from ..tir_schedules import Rule
from ..tir_schedules.blocks import is_scheduled
from .sizes import checked_sizes, iterations, shape_of, symbols, symbols_in, timed_sizes, value

_CALLS = ("relax.call_tir", "relax.call_tir_with_grad")
_IN_PLACE = "relax.call_tir_inplace"


@dataclass(frozen=True)
class Task:
    """One workload: what is tuned, by which rule, and how much it matters."""

    key: str
    readable: str
    func: tirx.PrimFunc
    rule: Rule
    default: object  # the rule's analytic decision
    space: tuple[object, ...]  # the default first
    count: int  # call sites in the model
    sizes: tuple[Size, ...]
    checked: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]  # positions of the parameters that are written
    weights: tuple[int, ...]  # positions of the parameters that hold weights: cold when a model runs


@dataclass(frozen=True)
class Tasks:
    """What a module has to tune."""

    tasks: tuple[Task, ...]
    skipped: tuple[Skipped, ...]


def tasks_of(
    mod: tvm.IRModule,
    target: Target,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    fixed: Mapping[str, int] | None = None,
    at_calls: Mapping[str, Mapping[str, int]] | None = None,
) -> Tasks:
    """The tasks of a module before scheduling, the most work first, and the functions that are none.

    `ranges` bounds symbolic dimensions by name (both ends included); those of `fixed`, and by function of `at_calls`,
    are timed at that size only, as an open batch is at one. A module without Relax functions is taken as one call of
    each PrimFunc.
    """
    counts, weights, in_place = _call_sites(mod)
    tasks: dict[str, Task] = {}
    skipped: dict[str, Skipped] = {}
    for gvar, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        count = counts[gvar.name_hint] if counts or in_place else 1
        key = workload_key(func)
        if key in tasks or key in skipped:
            found = tasks if key in tasks else skipped
            found[key] = _counted(found[key], count)
            continue
        sizes = {**(fixed or {}), **(at_calls or {}).get(gvar.name_hint, {})}
        calls = count, weights.get(gvar.name_hint, ()), gvar.name_hint in in_place
        made = _task(func, key, target, ranges or {}, sizes, *calls)
        if isinstance(made, Task):
            tasks[key] = made
        else:
            skipped[key] = made
    order = sorted(tasks.values(), key=lambda t: (-_work(t), t.key))
    return Tasks(tuple(order), tuple(skipped.values()))


def _work(task: Task) -> float:
    """Iterations of all calls of a task at the sizes it is timed at."""
    names = symbols(task.func)
    return task.count * sum(size.weight * iterations(task.func, dict(zip(names, size.dims))) for size in task.sizes)


def _task(
    func: tirx.PrimFunc,
    key: str,
    target: Target,
    ranges: Mapping[str, tuple[int, int]],
    fixed: Mapping[str, int],
    count: int,
    weights: tuple[int, ...],
    in_place: bool,
) -> Task | Skipped:
    readable = describe(func)
    if in_place:
        return Skipped(readable, count, "updates an argument in place: repeated timing would change its input")
    if count == 0:
        return Skipped(readable, count, "is never called through call_tir")
    if is_scheduled(func):
        return Skipped(readable, count, "is scheduled already")
    if any(OVERRIDE in block.annotations for block in blocks_of(func)):
        return Skipped(readable, count, "halo.toml fixes its schedule")
    try:
        choice = rule_for(func, target)
        rule, default = choice.rule, choice.decision
        space = tuple(dict.fromkeys((default, *rule.space(func, target))))
    except Declined as declined:
        return Skipped(readable, count, f"no rule serves it: {declined}")
    if len(space) == 1:
        return Skipped(readable, count, f"rule {rule.name} has a single decision for it")
    try:
        timed = {**ranges, **{name: (size, size) for name, size in fixed.items()}}
        sizes, checked = timed_sizes(func, timed), checked_sizes(func, ranges)
        for size in (*(s.dims for s in sizes), *checked):
            env = dict(zip(symbols(func), size))
            for param in func.params:
                if isinstance(param.ty, tirx.BufferType):
                    shape_of(param, env)
            iterations(func, env)
    except ValueError as error:
        return Skipped(readable, count, f"its shapes cannot be evaluated: {error}")
    outputs = written(func)
    if not outputs:
        return Skipped(readable, count, "writes none of its parameters")
    return Task(
        key,
        readable,
        func,
        rule,
        default,
        space,
        count,
        sizes,
        checked,
        outputs,
        tuple(i for i in weights if i not in outputs),
    )


def written(func: tirx.PrimFunc) -> tuple[int, ...]:
    """Positions of the parameters that `func` writes."""
    stores = {n.buffer for n in walk(func.body) if isinstance(n, tirx.BufferStore)}
    return tuple(i for i, p in enumerate(func.params) if any(p.same_as(s) for s in stores))


def _counted(entry: Task | Skipped, more: int) -> Task | Skipped:
    fields = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
    return type(entry)(**{**fields, "count": entry.count + more})


def _call_sites(mod: tvm.IRModule) -> tuple[Counter[str], dict[str, tuple[int, ...]], set[str]]:
    """(calls per PrimFunc, positions of weight arguments, functions called in place)."""
    counts: Counter[str] = Counter()
    weights: dict[str, tuple[int, ...]] = {}
    in_place: set[str] = set()
    functions = {gvar: func for gvar, func in mod.functions_items() if isinstance(func, relax.Function)}
    runs = Counter(call.op for func in functions.values() for call in _every_call(func))
    for gvar, func in functions.items():
        parameters = list(func.params)[num_inputs(func) :]
        times = runs[gvar] if is_part(func) else 1
        for call in _tir_calls(func):
            name = call.args[0].name_hint
            if call.op.name == _IN_PLACE and not is_part(func):  # which writes its results where they belong
                in_place.add(name)
            counts[name] += times
            weights[name] = tuple(
                i
                for i, a in enumerate(_arguments(call))
                if isinstance(a, ir.Var) and any(a.same_as(p) for p in parameters)
            )
    return counts, weights, in_place


def sizes_at_calls(mod: tvm.IRModule, sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """By function, what its dimensions are where main calls it first and its own have `sizes`, as far as these tell."""
    found: dict[str, dict[str, int]] = {}
    for call in _tir_calls(mod["main"]):
        if call.args[0].name_hint in found:
            continue
        known = found.setdefault(call.args[0].name_hint, {})
        for param, arg in zip(mod[call.args[0]].params, _arguments(call)):
            shape = getattr(arg.ty, "shape", None)
            if not isinstance(param.ty, tirx.BufferType) or not isinstance(shape, relax.ShapeExpr):
                continue
            for dim, size in zip(param.ty.shape, shape.values):
                used = symbols_in(size)
                if isinstance(dim, ir.Var) and all(v.name in sizes for v in used):
                    with suppress(ValueError):  # it is timed as if its sizes were not known
                        known.setdefault(dim.name, value(size, {v: sizes[v.name] for v in used}))
    return found


def _arguments(call: relax.Call) -> Sequence[relax.Expr]:
    return call.args[1].fields if isinstance(call.args[1], (relax.Tuple, ir.Tuple)) else ()


def _every_call(func: relax.Function) -> Iterator[relax.Call]:
    """Every call in `func`, those in branches as well."""
    calls: list[relax.Call] = []
    relax.analysis.post_order_visit(func.body, lambda e: calls.append(e) if isinstance(e, relax.Call) else None)
    return iter(calls)


def _tir_calls(func: relax.Function) -> Iterator[relax.Call]:
    return (c for c in _every_call(func) if isinstance(c.op, ir.Op) and c.op.name in (*_CALLS, _IN_PLACE))
