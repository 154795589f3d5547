"""Sizes of named dimensions, as an option writes them."""

from __future__ import annotations

from ..errors import UsageError


def parse_sizes(text: str | None) -> dict[str, int]:
    """`batch=1,sequence=128` as sizes by dimension name; `UsageError` for anything else."""
    sizes: dict[str, int] = {}
    for part in (text or "").split(","):
        name, equals, size = (word.strip() for word in part.partition("="))
        if not part.strip():
            continue
        if not (name and equals and size.isdecimal()):
            raise UsageError(
                f"sizes are written NAME=SIZE, separated by commas, but {part.strip()!r} was given: correct --shape"
            )
        if int(size) == 0:
            raise UsageError(f"a size must be at least 1, but {part.strip()!r} was given: correct --shape")
        sizes[name] = int(size)
    return sizes
