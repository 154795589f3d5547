"""A few decisions of a large space in which every value of every field occurs."""

import dataclasses
from collections.abc import Sequence


def covering(space: Sequence[object]) -> list[object]:
    """The default, then greedily the decisions with the most values not seen yet."""

    def values(decision: object) -> set[tuple[str, object]]:
        return set(vars(decision).items())

    assert all(dataclasses.is_dataclass(d) for d in space)
    chosen = [space[0]]
    missing = set().union(*map(values, space)) - values(space[0])
    while missing:
        chosen.append(max(space, key=lambda d: len(values(d) & missing)))
        missing -= values(chosen[-1])
    return chosen
