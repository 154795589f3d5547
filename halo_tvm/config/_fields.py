"""What a field of an option set takes, from its annotation: the same for a flag, an options file and Python."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from numbers import Integral, Real

_TYPES: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "tuple": tuple}
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list of texts"}


def type_of(field: dataclasses.Field[object]) -> type:
    """str, int, float, bool or tuple: the type of the field's values that are not None."""
    return _TYPES[re.split(r"\W", str(field.type), maxsplit=1)[0]]


def in_words(field: dataclasses.Field[object]) -> str:
    """What the field takes, for a message."""
    return _WORDS[type_of(field)]


def flag_of(field: dataclasses.Field[object]) -> str:
    """The field as the command line spells it: `--opt-level`."""
    return "--" + str(field.metadata.get("spelled", field.name)).replace("_", "-")


def listed(field: dataclasses.Field[object], text: str) -> tuple[str, ...]:
    """The values in one text: commas separate them, unless the values themselves may hold commas."""
    parts = text.split(",") if field.metadata.get("split", True) else [text]
    return tuple(part for part in parts if part)


def taken(field: dataclasses.Field[object], value: object) -> object:
    """`value` as the field keeps it; `TypeError` where it cannot be meant.

    A path or a number may stand for a text (`opt_level=2`), and a text for a list of one or more.
    """
    kind = type_of(field)
    if value is None and str(field.type).endswith("None"):
        return None
    if kind is bool or isinstance(value, bool):
        if kind is bool and isinstance(value, bool):
            return value
    elif kind is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(_text(one) for one in value)
        return listed(field, _text(value))
    elif kind is str:
        return _text(value)
    elif kind is int and isinstance(value, Integral):
        return int(value)
    elif kind is float and isinstance(value, Real):
        return float(value)
    raise TypeError(f"{in_words(field)} was expected, found {value!r}")


def _text(value: object) -> str:
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))
    raise TypeError(f"a text was expected, found {value!r}")
