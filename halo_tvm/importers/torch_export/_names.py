"""Names of outputs, by where they lie in what a module returns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence


def name_of(path: Sequence[str]) -> str:
    """`past_key_values.0.1` for a value inside dicts and tuples; `output_0` for one in a tuple."""
    text = ".".join(path)
    return f"output_{text}" if text[:1].isdigit() else text


def distinct(names: Mapping[int, str]) -> dict[int, str]:
    """`names`, numbered where the keys 1 and "1" gave two values one name."""
    found: dict[int, str] = {}
    for index, name in names.items():
        number = itertools.count(1)
        while name in found.values() or (name != names[index] and name in names.values()):
            name = f"{names[index]}_{next(number)}"
        found[index] = name
    return found
