"""The combinations that tests run: few, the first among them, and nothing is missing."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from covering import smallest_cover


@pytest.mark.parametrize(("strength", "most"), [(1, 4), (2, 15), (3, 24)])
def test_every_combination_of_values_occurs(strength: int, most: int) -> None:
    cases = [dict(zip("abc", values, strict=True)) for values in product(range(4), range(3), range(2))]
    cases = [case for case in cases if case["a"] + case["b"] < 5]  # one pair of values does not exist
    chosen = smallest_cover(cases, strength)
    assert chosen[0] == 0 and len(chosen) <= most and len(set(chosen)) == len(chosen)

    def held(numbers: list[int]) -> set[object]:
        return {part for n in numbers for part in combinations(cases[n].items(), strength)}

    assert held(chosen) == held(list(range(len(cases))))


def test_a_test_without_parameters_is_one_case() -> None:
    assert smallest_cover([{}], 2) == [0]
