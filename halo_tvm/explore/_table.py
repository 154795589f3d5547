"""Tables that a notebook shows as HTML and a terminal as aligned text, and text that shows as it is."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Text(str):
    """Lines for people: their representation is the text itself, not a quoted string."""

    def __repr__(self) -> str:
        return str(self)


class Table(ABC):
    """What shows as a table. A dataclass leaves its own representation out: `@dataclass(repr=False)`."""

    @abstractmethod
    def _table(self) -> tuple[list[str], list[list[object]], str]:
        """(header, rows, title)."""

    def __repr__(self) -> str:
        return as_text(*self._table())

    def _repr_html_(self) -> str:
        return as_html(*self._table())


class Rows(Table, Generic[T]):
    """A table of `rows`, which it is iterated over."""

    rows: tuple[T, ...]

    def __iter__(self) -> Iterator[T]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def as_text(header: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> str:
    """Columns side by side; numbers stand to the right."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    right = [all(isinstance(row[i], (int, float)) for row in rows) and bool(rows) for i in range(len(header))]
    lines = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right)).rstrip() for line in cells
    ]
    return "\n".join([*([title] if title else []), *lines])


def as_html(header: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> str:
    """The same as an HTML table; every text is escaped."""
    head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in rows)
    caption = f"<p>{html.escape(title)}</p>" if title else ""
    return f"{caption}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def fields_text(fields: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def _html_cell(value: object) -> str:
    side = "right" if isinstance(value, (int, float)) else "left"
    return f"<td style='text-align:{side}'>{html.escape(_cell(value))}</td>"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return str(value)
