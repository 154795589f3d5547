"""Text of unknown origin, made harmless for a line of output."""

from __future__ import annotations

_LONGEST = 64  # characters of a name


def one_line(text: object) -> str:
    """`text` with every kind of white space as a space, and a mark for what a terminal would act on or not show."""
    words = str(text)
    return words if words.isprintable() else "".join(_shown(c) for c in words)


def shortened(name: str) -> str:
    """`name` in at most 64 characters: of a longer one its middle is left out, as ends tell names apart."""
    if len(name) <= _LONGEST:
        return name
    behind = _LONGEST // 3
    return f"{name[: _LONGEST - behind - 1]}…{name[-behind:]}"


def _shown(character: str) -> str:
    return character if character.isprintable() else " " if character.isspace() else "?"
