"""Schedule every PrimFunc: what halo.toml asks for, else a tuned record, else the first rule that serves it.

`scheduled_by` is the only way from a decision to code: compiling and tuning both take it, so what was
measured is what is shipped.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
from tvm import tirx

from ..errors import Declined, Stopped, UnknownName, UsageError
from ..phase_reports import FunctionReport, ScheduleReport
from ..relay_ops.operator import OVERRIDE
from ..targets import Target
from ..tir_schedules import RULES, Rule
from ..tir_schedules.blocks import blocks
from ..tir_schedules.code.launches import without_empty_launches
from .vector_math import rewrite_function
from .work import work_of

_LOGGER = logging.getLogger(__name__)

# (function, rule) -> the decision of a tuning record and how it is described, or None
Lookup = Callable[[tirx.PrimFunc, Rule], tuple[object, str] | None]


@dataclass(frozen=True)
class Choice:
    """How one function is scheduled, and which rules declined before, with their reasons."""

    rule: Rule
    decision: object
    origin: str  # "override", "record ...", "rule"
    declined: tuple[str, ...]
    stopped: tuple[str, ...] = ()  # of those rules, the ones that ended with an error of code that is not ours


def rule_for(func: tirx.PrimFunc, target: Target) -> Choice:
    """The first rule of the target's list that serves `func`; `Declined` when none does."""
    reasons: list[str] = []
    stopped: list[str] = []
    for name in target.spec.rules:
        try:
            return Choice(RULES[name], RULES[name].default(func, target), "rule", tuple(reasons), tuple(stopped))
        except Declined as declined:
            reasons.append(f"{name}: {declined}")
            stopped += [name] if isinstance(declined, Stopped) else []
    raise Declined("; ".join(reasons))


def scheduled_by(
    rule: Rule,
    func: tirx.PrimFunc,
    target: Target,
    decision: object,
    *,
    vector_math: bool = True,
    counts: tuple[Counter[str], Counter[str]] | None = None,
) -> tirx.PrimFunc:
    """`func` scheduled by one decision, its transcendental functions in vector form unless switched off.

    `counts` gathers which of these became polynomials and which were left to the C library. On a GPU kernels are
    launched only where there is something to compute.
    """
    scheduled = rule.apply(func, target, decision)
    if target.spec.gpu:
        scheduled = without_empty_launches(scheduled)
    if not vector_math:
        return scheduled
    return rewrite_function(scheduled, *(counts or (Counter(), Counter())), wide=not target.spec.gpu)


def schedule_functions(
    mod: tvm.IRModule, target: Target, lookup: Lookup | None = None, *, vector_math: bool = True
) -> tuple[tvm.IRModule, ScheduleReport]:
    """Every PrimFunc of `mod` scheduled; the report has one entry per function, with what it does at
    least (see `work`)."""
    out = mod.clone()
    entries = []
    stopped: Counter[str] = Counter()
    rewritten, left = counts = Counter(), Counter()
    for gvar, func in list(mod.functions_items()):
        if not isinstance(func, tirx.PrimFunc):
            continue
        choice, new = _scheduled(gvar.name_hint, func, target, lookup, vector_math=vector_math, counts=counts)
        out[gvar] = new.with_attr("tirx.is_scheduled", True)
        stopped.update(choice.stopped)
        entries.append(
            FunctionReport(
                gvar.name_hint,
                choice.rule.name,
                choice.origin,
                str(choice.decision),
                choice.declined,
                work_of(func, target.isa.narrow_dtypes),
            )
        )
    return out, ScheduleReport(
        functions=tuple(entries),
        rules=Counter(entry.rule for entry in entries),
        stopped=stopped,
        tuned=sum(entry.origin.startswith("record") for entry in entries),
        vector_math={"rewritten": rewritten, "left": left},
    )


def _scheduled(
    name: str,
    func: tirx.PrimFunc,
    target: Target,
    lookup: Lookup | None,
    *,
    vector_math: bool,
    counts: tuple[Counter[str], Counter[str]],
) -> tuple[Choice, tirx.PrimFunc]:
    """The choice that was carried out; a rule whose own default cannot be applied makes way for the fallback."""
    choice = _choose(func, target, lookup)
    try:
        return choice, scheduled_by(choice.rule, func, target, choice.decision, vector_math=vector_math, counts=counts)
    except (Declined, RuntimeError, ValueError) as reason:  # TVM's errors are RuntimeErrors
        last = RULES[target.spec.rules[-1]]
        if choice.origin != "rule" or choice.rule is last:
            raise
        first = str(reason).strip().split("\n")[0]
        if not isinstance(reason, Declined):  # a fault of ours, that the numbers would not show
            _LOGGER.warning(
                "%s: schedule rule %s matched and then failed (%s); %s serves it, which may be many times slower:"
                " report this model",
                name,
                choice.rule.name,
                first,
                last.name,
            )
    declined = (*choice.declined, f"{choice.rule.name}: {first}")
    choice = Choice(last, last.default(func, target), "rule", declined, choice.stopped)
    return choice, scheduled_by(last, func, target, choice.decision, vector_math=vector_math, counts=counts)


def _choose(func: tirx.PrimFunc, target: Target, lookup: Lookup | None) -> Choice:
    asked = _override(func)
    if asked:
        return _asked_for(func, target, asked)
    choice = rule_for(func, target)
    found = lookup(func, choice.rule) if lookup else None
    if found is None:
        return choice
    decision, origin = found
    return Choice(choice.rule, decision, f"record {origin}", choice.declined, choice.stopped)


def _asked_for(func: tirx.PrimFunc, target: Target, asked: Mapping[str, object]) -> Choice:
    """The rule and the decision fields that halo.toml names; what it leaves out is the rule's default."""
    name = asked.get("rule")
    if name is not None and name not in RULES:
        raise UnknownName("schedule rule", str(name), RULES)
    try:
        choice = (
            Choice(RULES[name], RULES[name].default(func, target), "override", ()) if name else rule_for(func, target)
        )
        default = vars(choice.decision)
        fields = {**default, **asked.get("decision", {})}
        for key, value in fields.items():
            if key in default and type(value) is not type(default[key]):
                raise Declined(f"{key} of {choice.rule.name} is a {type(default[key]).__name__}, not {value!r}")
        return Choice(choice.rule, type(choice.decision)(**fields), "override", choice.declined)
    except (Declined, TypeError) as reason:
        raise UsageError(
            f"halo.toml asks for {json.dumps(dict(asked))}, but {reason}: correct the override"
        ) from reason


def _override(func: tirx.PrimFunc) -> dict[str, object]:
    for block in blocks(func):
        if OVERRIDE in block.node.annotations:
            return json.loads(str(block.node.annotations[OVERRIDE]))
    if func.attrs and OVERRIDE in func.attrs.keys():
        return json.loads(str(func.attrs[OVERRIDE]))
    return {}
