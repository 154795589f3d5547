"""Text of unknown origin, made harmless for a line of output."""

from __future__ import annotations


def one_line(text: object) -> str:
    """`text` with every kind of white space as a space, and a mark for what a terminal would act on or not show."""
    words = str(text)
    return words if words.isprintable() else "".join(_shown(c) for c in words)


def _shown(character: str) -> str:
    return character if character.isprintable() else " " if character.isspace() else "?"
