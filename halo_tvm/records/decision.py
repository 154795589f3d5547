"""Decisions (frozen dataclasses of plain values) as JSON objects, and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping


def decision_to_plain(decision: object) -> dict[str, object]:
    """The fields of a rule's decision; raises `TypeError` when it is no dataclass."""
    if not dataclasses.is_dataclass(decision) or isinstance(decision, type):
        raise TypeError(f"a decision is a frozen dataclass, got {decision!r}: give the rule a Decision class")
    return {f.name: _to_json(getattr(decision, f.name)) for f in dataclasses.fields(decision)}


def decision_from_plain(kind: type, fields: Mapping[str, object]) -> object:
    """A `kind` from the fields in a record; raises `ValueError` unless names and types are those of `kind`."""
    names = {f.name for f in dataclasses.fields(kind)}
    if set(fields) != names:
        raise ValueError(f"expected the fields {sorted(names)} of {kind.__name__}, found {sorted(fields)}")
    values = {name: _from_json(value) for name, value in fields.items()}
    for name, hint in typing.get_type_hints(kind).items():
        if name in names and not _fits(values[name], hint):
            raise ValueError(f"expected {name} of {kind.__name__} to be {hint}, found {values[name]!r}")
    return kind(**values)


def _fits(value: object, hint: object) -> bool:
    """Whether `value` is what the annotation says; True is no int here, and an int may stand for a float."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in args)
    if origin is typing.Literal:
        return any(type(value) is type(one) and value == one for one in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        wanted = args[:1] * len(value) if args[1:] == (...,) else args
        return len(value) == len(wanted) and all(map(_fits, value, wanted))
    if hint is float:
        return type(value) in (int, float)
    return value is None if hint is type(None) else hint is object or type(value) is hint


def _to_json(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_to_json(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a decision holds numbers, strings and tuples of them, got {value!r}")


def _from_json(value: object) -> object:
    return tuple(_from_json(v) for v in value) if isinstance(value, list) else value
