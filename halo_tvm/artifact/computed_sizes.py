"""Sizes that are computed of others, as the text that a shape of a manifest has for them: `past + sequence`.

Grammar
    sum      product (+ | - product)*
    product  atom (* | // | % atom)*
    atom     whole number, name, (sum), min(sum, sum), max(sum, sum)
A name is letters, digits and _ of any script. `dimensions.text_of` writes such texts. A manifest is untrusted: no more
is read than `evaluate` takes, and a text that is none of these stands for a size that nobody knows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from .conditions import names_of
from .formula import DEPTH_LIMIT, OPERATIONS, evaluate

_LONGEST = 4000  # characters; texts of real models have two dozen
_TOKENS = re.compile(r"\s*(\w+|//|[-+*%(),])")
_SUMS, _PRODUCTS, _FUNCTIONS = ("+", "-"), ("*", "//", "%"), ("min", "max")


class _Unreadable(Exception):
    """A text that is no size."""


def size_at(dim: int | str, sizes: Mapping[str, int]) -> int | None:
    """A size of a shape where named ones are `sizes`; None where it does not follow from these."""
    if isinstance(dim, int) or dim in sizes:
        return dim if isinstance(dim, int) else sizes[dim]
    formula = formula_of(dim)
    return None if formula is None or not names_of(formula) <= sizes.keys() else evaluate(formula, sizes)


def sizes_at(shape: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """`shape` where named sizes are `sizes`; `KeyError` where one does not follow from these."""
    found = [(dim, size_at(dim, sizes)) for dim in shape]
    for dim, size in found:
        if size is None:
            raise KeyError(dim)
    return tuple(size for _, size in found if size is not None)


def range_of(dim: int | str, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
    """What a size of a shape lies in where named ones lie in `ranges`; None where that is not known."""
    if isinstance(dim, str) and dim in ranges:
        return ranges[dim]
    try:
        return _range(dim if isinstance(dim, int) else formula_of(dim), ranges)
    except KeyError:
        return None


def is_computed(dim: int | str) -> bool:
    """Whether a size of a shape is computed of others, and neither a number nor a name of its own."""
    return isinstance(dim, str) and isinstance(formula_of(dim), list)


def names_in(dim: int | str) -> list[str]:
    """The named sizes that one of a shape is, or is computed of."""
    if isinstance(dim, int):
        return []
    return sorted(names_of(formula_of(dim))) if is_computed(dim) else [dim]


def _range(formula: object, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """`KeyError` where it is not known."""
    if isinstance(formula, int):
        return formula, formula
    if not isinstance(formula, list):
        return ranges[str(formula)]
    operation, (a, b), (c, d) = formula[0], _range(formula[1], ranges), _range(formula[2], ranges)
    if operation in ("//", "%") and c <= 0 <= d or operation == "%" and c < 0:
        raise KeyError(operation)
    if operation == "%":
        return (a, b) if 0 <= a and b < c else (0, d - 1)
    corners = [OPERATIONS[operation](x, y) for x in (a, b) for y in (c, d)]
    return min(corners), max(corners)


@functools.lru_cache(maxsize=1024)
def formula_of(text: str) -> object:
    """The formula (see `formula`) that `text` writes; None where it is none."""
    if len(text) > _LONGEST:
        return None
    reader = _Reader(text)
    try:
        found = reader.sum(0)
        return found if reader.ended else None
    except _Unreadable:
        return None


class _Reader:
    """One text, read from its beginning."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._operations = text.rstrip(), 0, 0

    @property
    def ended(self) -> bool:
        return self._at == len(self._text)

    def sum(self, depth: int) -> object:
        left = self._product(depth)
        while self._next() in _SUMS:
            left = [self._counted(self._take()), left, self._product(depth)]
        return left

    def _product(self, depth: int) -> object:
        left = self._atom(depth)
        while self._next() in _PRODUCTS:
            left = [self._counted(self._take()), left, self._atom(depth)]
        return left

    def _atom(self, depth: int) -> object:
        if depth > DEPTH_LIMIT:
            raise _Unreadable
        token = self._take()
        if token == "(":
            inside = self.sum(depth + 1)
            self._expect(")")
            return inside
        if token == "-" and self._next().isdecimal():
            return -_number(self._take())
        if token in _FUNCTIONS and self._next() == "(":
            self._expect("(")
            first = self.sum(depth + 1)
            self._expect(",")
            second = self.sum(depth + 1)
            self._expect(")")
            return [self._counted(token), first, second]
        if not re.fullmatch(r"\w+", token):
            raise _Unreadable
        return _number(token) if token.isdecimal() else token

    def _next(self) -> str:
        match = _TOKENS.match(self._text, self._at)
        return match[1] if match else ""

    def _take(self) -> str:
        match = _TOKENS.match(self._text, self._at)
        if match is None:
            raise _Unreadable
        self._at = match.end()
        return match[1]

    def _counted(self, operation: str) -> str:
        """So many lie inside one another at most."""
        self._operations += 1
        if self._operations > DEPTH_LIMIT:
            raise _Unreadable
        return operation

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise _Unreadable


def _number(digits: str) -> int:
    if len(digits) > 20:
        raise _Unreadable
    return int(digits)
