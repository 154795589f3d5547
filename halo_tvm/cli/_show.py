"""How verbs print tables, sizes and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns under a header; the last column may be of any length."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header) - 1)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths)), row[-1]]).rstrip() for row in cells)


def size(size_bytes: int) -> str:
    """Bytes in a unit a person reads: `32 KiB`, `1.5 GiB`."""
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def print_json(value: object) -> None:
    """`value` as indented JSON on standard output."""
    print(json.dumps(value, indent=2, sort_keys=False))
