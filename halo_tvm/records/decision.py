"""Decisions (frozen dataclasses of plain values) as JSON objects, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


def decision_to_plain(decision: object) -> dict[str, object]:
    """The fields of a rule's decision; raises `TypeError` when it is no dataclass."""
    if not dataclasses.is_dataclass(decision) or isinstance(decision, type):
        raise TypeError(f"a decision is a frozen dataclass, got {decision!r}: give the rule a Decision class")
    return {f.name: _to_json(getattr(decision, f.name)) for f in dataclasses.fields(decision)}


def decision_from_plain(kind: type, fields: Mapping[str, object]) -> object:
    """A `kind` from the fields in a record; raises `ValueError` when they are not exactly the fields of `kind`."""
    names = {f.name for f in dataclasses.fields(kind)}
    if set(fields) != names:
        raise ValueError(f"expected the fields {sorted(names)} of {kind.__name__}, found {sorted(fields)}")
    return kind(**{name: _from_json(value) for name, value in fields.items()})


def _to_json(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_to_json(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a decision holds numbers, strings and tuples of them, got {value!r}")


def _from_json(value: object) -> object:
    return tuple(_from_json(v) for v in value) if isinstance(value, list) else value
