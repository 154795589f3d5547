"""A titled table of text, as every view draws it."""

from __future__ import annotations

from dataclasses import dataclass

from ..text import one_line


@dataclass(frozen=True)
class Table:
    """Every text becomes one line that can be shown: names come from models and from files."""

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shown = {
            "title": one_line(self.title),
            "header": tuple(map(one_line, self.header)),
            "rows": tuple(tuple(map(one_line, row)) for row in self.rows),
            "notes": tuple(one_line(note).strip() for note in self.notes),
        }
        for name, value in shown.items():
            object.__setattr__(self, name, value)


def quotient(part: float | None, whole: float | None) -> float | None:
    """`part / whole`; None where one is unknown, or there is no whole."""
    return part / whole if part is not None and whole else None


def percent(part: float | None, whole: float | None, form: str = ".1f") -> str:
    """A share as a cell."""
    found = quotient(part, whole)
    return "-" if found is None else f"{format(100 * found, form)} %"


def threads(count: int) -> str:
    """That many threads, in words."""
    return f"{count} thread{'s' if count > 1 else ''}"


def number(value: float | None, form: str = ".2f") -> str:
    """A number as a cell; "-" where there is none."""
    return "-" if value is None else format(value, form)
