"""A few of many combinations in which every value, or every pair of values, occurs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations


def covering(space: Sequence[object]) -> list[object]:
    """The default of a space of decisions, and others, until every value of every field has occurred."""
    assert all(dataclasses.is_dataclass(decision) for decision in space)
    return [space[number] for number in smallest_cover([vars(decision) for decision in space])]


def smallest_cover(cases: Sequence[Mapping[str, object]], strength: int = 1) -> list[int]:
    """Numbers of cases, the first among them, that hold every `strength` values that some case holds together.

    Greedy, so few are taken, not the fewest: the next one holds the most that is missing, and of those that do, values
    that occurred least: each of two instruction sets gets half of the cases.
    """

    def held(case: Mapping[str, object]) -> set[object]:
        return set(combinations(sorted(case.items(), key=lambda item: item[0]), min(strength, len(case))))

    sets = [held(case) for case in cases]
    occurred: Counter[tuple[str, object]] = Counter()

    def worth(number: int) -> tuple[int, int]:
        return len(sets[number] & missing), -sum(occurred[value] for value in cases[number].items())

    chosen = [0]
    missing = set().union(*sets) - sets[0]
    while missing:
        occurred.update(cases[chosen[-1]].items())
        chosen.append(max(range(len(sets)), key=worth))
        missing -= sets[chosen[-1]]
    return chosen
