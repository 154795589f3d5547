"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from .schema import Result
from .tables import Table, tables_of


def render(result: Result) -> str:
    """The result as Markdown: a heading, a table and notes per section."""
    return "\n".join(_section(table) for table in tables_of(result))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, first column to the left, others to the right; pipes in cells are escaped."""
    lines = [header, ["---", *(["---:"] * (len(header) - 1))], *rows]
    return (
        "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
        )
        + "\n"
    )


def _section(section: Table) -> str:
    parts = [f"### {_plain(section.title)}\n"]
    if section.rows:
        header, *rows = ([_plain(cell) for cell in row] for row in (section.header, *section.rows))
        parts.append(table(header, rows))
    if section.notes:
        parts.append("\n".join(f"- {_plain(note)}" for note in section.notes) + "\n")
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Text as text: no HTML, link or image, whatever a name holds; a bare address would become a link, too."""
    text = text.replace("\\", "\\\\").replace("[", "\\[").replace("<", "&lt;")
    return text.replace("://", ":&#47;&#47;").replace("www.", "www&#46;")
