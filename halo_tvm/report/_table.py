"""A titled table of text, as every view draws it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def number(value: float | None, form: str = ".2f") -> str:
    """A number as a cell; "-" where there is none."""
    return "-" if value is None else format(value, form)
