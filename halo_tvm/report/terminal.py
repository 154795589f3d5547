"""Results as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from .schema import Result
from .tables import Table, tables_of


def render(result: Result) -> str:
    """The result as aligned tables; nothing is printed here."""
    return "\n\n".join(_text(table) for table in tables_of(result)) + "\n"


def _text(table: Table) -> str:
    lines = [table.title]
    if table.rows:
        lines += _aligned([table.header, *table.rows])
    return "\n".join([*lines, *table.notes])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """First column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  " + "  ".join(cells).rstrip())
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
    return lines
