"""What must hold of the sizes of a run beside their ranges: how one compares with another.

An exporter follows one branch of a model, the one that its examples took, and other sizes would have taken another: a
slice to `n` ends at `n` only while the axis is as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from .formula import evaluate

_MOST_TRIED = 4096


@dataclass(frozen=True)
class Condition:
    """`formula` (see `formula`), of the dimensions of inputs, is what it `must` be; `text` says it in the model's
    words."""

    formula: object
    must: Literal["at least 0", "0", "not 0"]
    text: str

    def holds(self, sizes: Mapping[str, int]) -> bool:
        value = evaluate(self.formula, sizes)
        return value >= 0 if self.must == "at least 0" else (value == 0) == (self.must == "0")


def broken(conditions: Sequence[Condition], sizes: Mapping[str, int]) -> Condition | None:
    """The first condition that does not hold at `sizes`."""
    return next((c for c in conditions if not c.holds(sizes)), None)


def sizes_that_hold(
    conditions: Sequence[Condition], ranges: Mapping[str, tuple[int, int]], wanted: Mapping[str, int]
) -> dict[str, int]:
    """`wanted`, or sizes near to them that meet all conditions; `wanted` where none are found."""
    read = sorted({name for c in conditions for name in names_of(c.formula) if name in wanted})
    if broken(conditions, wanted) is None:
        return dict(wanted)
    choices = []
    for name in read:
        size, (low, high) = wanted[name], ranges.get(name, (1, 1 << 30))
        near = dict.fromkeys([size, size + 1, 2 * size, 2 * size + 1, size // 2, size - 1, 4 * size, size // 4, low])
        choices.append([n for n in near if low <= n <= high])
    for tried, sizes in enumerate(product(*choices)):
        found = {**wanted, **dict(zip(read, sizes))}
        if broken(conditions, found) is None:
            return found
        if tried > _MOST_TRIED:
            break
    return dict(wanted)


def names_of(formula: object) -> set[str]:
    """The dimensions that a formula reads."""
    if isinstance(formula, str):
        return {formula}
    return set().union(*map(names_of, formula[1:])) if isinstance(formula, (list, tuple)) else set()
