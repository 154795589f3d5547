"""The schedule-rule protocol: what one file in this package must define.

A rule serves a PrimFunc or declines with a sentence. Its analytic default and the tuner speak the
same vocabulary, the rule's frozen `Decision` dataclass, so the two cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tvm import ir, s_tir, tirx

from ..errors import Declined

if TYPE_CHECKING:
    from ..targets import Target
    from ..targets.gpu_levels import GpuLevel

D = TypeVar("D")
RULES: dict[str, Rule] = {}


@dataclass(frozen=True)
class Numbers:
    """Whole numbers from `least` to `most`: multiples of `step`, or powers of two alone.

    As the domain of a field of decisions they are somewhat more than the rule's own space and no more: code grows with
    most of them.
    """

    least: int
    most: int
    step: int = 1
    powers: bool = False

    def __contains__(self, value: int) -> bool:
        fits = value & (value - 1) == 0 if self.powers else value % self.step == 0
        return self.least <= value <= self.most and fits

    def __str__(self) -> str:
        kind = ", powers of two" if self.powers else f", multiples of {self.step}" if self.step > 1 else ""
        return f"{self.least} to {self.most}{kind}"


class Rule(Generic[D]):
    """Base class of every schedule rule; subclassing registers one instance under `name`."""

    name: ClassVar[str]
    is_general: bool = False  # serves functions of any kind: that it takes one is no reason to make it
    version: ClassVar[int] = 1  # raised when a decision changes its meaning: older records become hints
    Decision: ClassVar[type]
    # What the fields of a decision may hold, whatever the function; each entry of a tuple alike. With other values the
    # code would compute something else than the function, or have no end.
    domains: ClassVar[Mapping[str, Numbers | tuple[int | str, ...]]] = {}

    def __init_subclass__(cls) -> None:
        known = RULES.get(cls.name)
        # A notebook's cell that is run again replaces its own rule.
        if known is not None and not cls.__module__ == type(known).__module__ == "__main__":
            raise ValueError(f"schedule rule {cls.name} is defined twice: {RULES[cls.name]} and {cls}")
        RULES[cls.name] = cls()

    def default(self, func: tirx.PrimFunc, target: Target) -> D:
        """The analytic decision for `func`, or `Declined(reason)` when the rule does not serve it."""
        raise AssertionError(f"schedule rule {self.name} lacks its default")

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[D]:
        """Decisions worth measuring, the default first."""
        return (self.default(func, target),)

    def estimate(self, func: tirx.PrimFunc, target: Target, decision: D, sizes: Mapping[ir.Var, int]) -> float | None:
        """Microseconds `func` should take with `decision` at these values of its symbolic dimensions, or None.

        Only the order it gives to decisions of one function counts: it ranks them before any is measured.
        None: the rule has no model, and decisions near the default go first.
        """
        return None

    def apply(self, func: tirx.PrimFunc, target: Target, decision: D) -> tirx.PrimFunc:
        """`func` scheduled by `decision`; `Declined(reason)` when the decision cannot be applied.

        A decision may come from a log that anybody wrote: `check` before any work.
        """
        raise AssertionError(f"schedule rule {self.name} lacks its apply")

    def check(self, decision: D) -> None:
        """`Declined` unless every field of `decision` is within its domain."""
        for name, domain in self.domains.items():
            value = getattr(decision, name)
            for one in value if isinstance(value, tuple) else (value,):
                if one not in domain:
                    served = domain if isinstance(domain, Numbers) else ", ".join(map(str, domain))
                    raise Declined(f"{name} is {str(one)[:20]}, the rule serves {served}")


def first_of_each(decisions: Iterable[D], kernel: Callable[[D], object]) -> list[D]:
    """Of decisions that `kernel` maps to equal values, those that make one kernel, the first."""
    found: dict[object, D] = {}
    for decision in decisions:
        found.setdefault(kernel(decision), decision)
    return list(found.values())


def accepted(candidates: Iterable[D], check: Callable[[D], object]) -> Iterator[D]:
    """Those of `candidates`, decisions or what follows from them, that `check` does not decline."""
    for candidate in candidates:
        try:
            check(candidate)
        except Declined:
            continue
        yield candidate


def gpu_of(target: Target) -> GpuLevel:
    """The level of a GPU target, or `Declined`."""
    if target.isa.gpu is None:
        raise Declined(f"serves NVIDIA GPUs, {target.key} is none")
    return target.isa.gpu


def scheduled(schedule: s_tir.Schedule) -> tirx.PrimFunc:
    """The single function of `schedule`."""
    mod = schedule.mod
    return mod[mod.get_global_vars()[0]]
