"""Decisions (frozen dataclasses of plain values) as JSON objects, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..codec import Unfit, read


def decision_to_plain(decision: object) -> dict[str, object]:
    """The fields of a rule's decision; raises `TypeError` when it is no dataclass."""
    if not dataclasses.is_dataclass(decision) or isinstance(decision, type):
        raise TypeError(f"a decision is a frozen dataclass, got {decision!r}: give the rule a Decision class")
    return {f.name: _to_json(getattr(decision, f.name)) for f in dataclasses.fields(decision)}


def decision_from_plain(kind: type, fields: Mapping[str, object]) -> object:
    """A `kind` from the fields in a record; raises `ValueError` unless names and types are those of `kind`."""
    try:
        return read(kind, fields)
    except Unfit as unfit:
        expected = f"{unfit.where} of {kind.__name__} to be {unfit.expected}"
        expected = expected if unfit.where else f"{unfit.expected} of {kind.__name__}"
        raise ValueError(f"expected {expected}, found {unfit.found}") from unfit


def _to_json(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_to_json(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a decision holds numbers, strings and tuples of them, got {value!r}")
