"""A few of many combinations in which every value, or every pair of values, occurs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import combinations


def covering(space: Sequence[object]) -> list[object]:
    """The default of a space of decisions, and others, until every value of every field has occurred."""
    assert all(dataclasses.is_dataclass(decision) for decision in space)
    return [space[number] for number in smallest_cover([vars(decision) for decision in space])]


def smallest_cover(cases: Sequence[Mapping[str, object]], strength: int = 1) -> list[int]:
    """Numbers of cases, the first among them, that hold every `strength` values that some case holds together.

    Greedy: the next one is the first of those that hold the most that is missing, so few are taken, not the fewest.
    """

    def held(case: Mapping[str, object]) -> set[object]:
        return set(combinations(sorted(case.items(), key=lambda item: item[0]), min(strength, len(case))))

    sets = [held(case) for case in cases]
    chosen = [0]
    missing = set().union(*sets) - sets[0]
    while missing:
        chosen.append(max(range(len(sets)), key=lambda number: len(sets[number] & missing)))
        missing -= sets[chosen[-1]]
    return chosen
