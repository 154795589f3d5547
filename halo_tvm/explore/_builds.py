"""A task under one decision: its loop nest, its code, and what the inner loop of that code is made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm import tirx

from ..code_generation import compiled
from ..errors import Declined, UsageError
from ..passes.schedule import scheduled_by
from ..tir_schedules import Rule
from ._nest import loops_of, nest_text
from ._table import Text
from ._tasks import Task, rule_of

_NAME = "main"
# What lines of an x86 listing count as, first match wins: AT&T operands end in the destination.
_X86 = (
    ("spill", r"(Spill|Reload|\(%rsp\)|\d+\(%rsp)"),
    ("fma", r"vfn?m(add|sub)\d+[ps][sd]"),
    ("prefetch", r"prefetch"),
    ("broadcast", r"v(p?)broadcast"),
    ("load", r"vmov\w+\s+[^%]*\(%"),
    ("store", r"vmov\w+\s+%[xyz]mm\d+,.*\("),
    ("arithmetic", r"v(add|sub|mul|div|max|min|sqrt|and|or|xor)[a-z]*p[sd]"),
    ("branch", r"j[a-z]+\s"),
)


@dataclass(frozen=True)
class Built:
    """Code for one decision. `module["main"]` runs in this process: measure with `explore.measure` instead."""

    task: Task
    decision: object
    func: tirx.PrimFunc  # scheduled
    executable: tvm.runtime.Executable

    @cached_property
    def assembly(self) -> str:
        """The listing that LLVM wrote."""
        return self.executable.mod.inspect_source("asm")

    @cached_property
    def module(self) -> tvm.runtime.Module:
        return self.executable.jit()

    @property
    def inner_loop(self) -> Mapping[str, int]:
        """What the innermost loop with the most arithmetic is made of, by kind of instruction; empty without a loop.

        Kinds are known for x86: fma, load, store, broadcast, prefetch, spill, arithmetic, branch, other.
        """
        loops = inner_loops(self.assembly)
        if not loops:
            return {}
        counts = [instruction_counts(lines) for lines in loops]
        return max(counts, key=lambda c: (c["fma"], c["arithmetic"], sum(c.values())))

    def __repr__(self) -> str:
        inner = ", ".join(f"{count} {kind}" for kind, count in self.inner_loop.items())
        lines = self.assembly.count("\n")
        return f"<Built {self.task.name}: {self.task.describe(self.decision)}; {lines} lines; inner loop: {inner}>"


def show(task: Task, decision: object | None = None, *, script: bool = False) -> Text:
    """The loop nest of `task`: unscheduled without a decision, else as the decision's rule schedules it.

    `script` gives TVMScript instead, which is long. `UsageError` when the rule declines the decision.
    """
    func = task.func if decision is None else scheduled(task, decision)
    if script:
        return Text(func.script(show_meta=False))
    own = decision is not None and isinstance(decision, task.rule.Decision)
    rule = f"{task.rule.name}: " if own else ""
    label = "unscheduled" if decision is None else f"{rule}{task.describe(decision)}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in loops_of(func).items() if kind != "for")
    return Text(f"{task.name}\n# {label}{f'; loops: {kinds}' if kinds else ''}\n{nest_text(func)}")


def scheduled(task: Task, decision: object) -> tirx.PrimFunc:
    """The function as `compile` would schedule it by this decision."""
    rule = rule_for(task, decision)
    try:
        return scheduled_by(rule, task.func, task.target, decision)
    except Declined as declined:
        raise UsageError(
            f"expected a decision that {rule.name} can apply to {task.name}, but it declines "
            f"{task.describe(decision)}: {declined}: change that field"
        ) from declined


def build(task: Task, decision: object | None = None) -> Built:
    """Machine code for `task` under a decision, by default the rule's own."""
    chosen = task.default if decision is None else decision
    func = scheduled(task, chosen)
    mod = tvm.IRModule({_NAME: func.with_attr("global_symbol", _NAME)})
    return Built(task, chosen, func, compiled(mod, task.target))


def rule_for(task: Task, decision: object) -> Rule:
    """The task's own rule when the decision is one of it, else the rule that has such decisions."""
    return task.rule if isinstance(decision, task.rule.Decision) else rule_of(decision)


def inner_loops(listing: str) -> list[list[str]]:
    """Runs of lines from a label to the jump back to it, with no label between."""
    loops: list[list[str]] = []
    label, lines = "", []
    for line in listing.splitlines():
        found = re.match(r"(\.?L\w+):", line)
        if found:
            label, lines = found.group(1), []
            continue
        lines.append(line)
        if label and re.match(rf"\s*(j[a-z]+|b(\.\w+)?|cbn?z)\s.*{re.escape(label)}\b", line):
            loops.append(lines)
            lines = []
    return loops


def instruction_counts(lines: list[str]) -> Counter[str]:
    """Lines of a listing by kind; comments, labels and directives are none."""
    counts: Counter[str] = Counter()
    for line in lines:
        text = line.strip()
        if not text or text.startswith((".", "#")) or text.endswith(":"):
            continue
        counts[next((kind for kind, pattern in _X86 if re.search(pattern, text)), "other")] += 1
    return counts
