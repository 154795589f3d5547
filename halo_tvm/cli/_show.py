"""How verbs print tables, sizes, JSON and results, and write files of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..text import one_line
from ..whole_file import write_whole

if TYPE_CHECKING:
    from ..report.schema import Result

STANDARD_OUTPUT = "-"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns under a header; the last column may be of any length. Cells become one line each."""
    cells = [[one_line(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header) - 1)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths)), row[-1]]).rstrip() for row in cells)


def size(size_bytes: int) -> str:
    """Bytes in a unit a person reads: `32 KiB`, `1.5 GiB`."""
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def mib(size_bytes: int | None) -> float | None:
    """Bytes in MiB."""
    return None if size_bytes is None else size_bytes / (1 << 20)


def print_json(value: object) -> None:
    """`value` as indented JSON on standard output."""
    print(json.dumps(value, indent=2, sort_keys=False))


def print_result(result: Result, *, json_file: str | None = None, markdown_file: str | None = None) -> None:
    """A result as a table on standard output (JSON instead when `json_file` is "-"), and as the files asked for."""
    from ..report import markdown, schema, terminal

    if json_file == STANDARD_OUTPUT:
        print_json(schema.to_json(result))
    else:
        print(terminal.render(result))
    if json_file and json_file != STANDARD_OUTPUT:
        write_text(json_file, json.dumps(schema.to_json(result), indent=2) + "\n")
    if markdown_file:
        write_text(markdown_file, markdown.render(result))


def check_writable(*paths: str | None) -> None:
    """`UsageError` before the work when a file asked for could not be written after it."""
    for path in paths:
        if path is None or path == STANDARD_OUTPUT:
            continue
        if Path(path).is_dir():
            raise UsageError(f"a file to write was expected, but {path} is a directory: name a file in it")
        if not Path(path).absolute().parent.is_dir():
            raise UsageError(f"the directory of {path} must exist, but does not: create it first")
        if not os.access(Path(path).absolute().parent, os.W_OK | os.X_OK):
            raise UsageError(f"the directory of {path} must be writable, but is not: name a file elsewhere")


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all."""
    try:
        write_whole(Path(path), text.encode())
    except OSError as error:
        raise UsageError(f"{path} must be writable, but {error.strerror}: name another file") from None
