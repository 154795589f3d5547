"""Records of named fields to and from plain JSON values, which are untrusted: every type and size is checked."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping

from ..errors import UsageError

LARGEST = 1 << 256  # of an integer: below it, all arithmetic with floats is safe
DEEPEST = 16  # of a value whose form is not declared


def as_plain(value: object) -> object:
    """Records and what is in them as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value


def record(cls: type, data: object, where: str) -> object:
    """An object of plain values as the record `cls`; `UsageError` naming the place for a wrong field."""
    if not isinstance(data, Mapping):
        raise UsageError(
            f"expected an object at {where}, found {type(data).__name__}: the file is damaged, measure again"
        )
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    fixed = {f.name: f.default for f in dataclasses.fields(cls) if not f.init}  # the kind of a result within a result
    data = {key: value for key, value in data.items() if not (key in fixed and value == fixed[key])}
    unknown = sorted(set(data) - set(fields))
    required = [
        n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    missing = sorted(set(required) - set(data))
    if unknown or missing:
        raise UsageError(
            f"expected the fields {', '.join(fields)} at {where}, found {', '.join(unknown) or 'nothing'} beyond them "
            f"and {', '.join(missing) or 'nothing'} missing: the file is of another release, measure again"
        )
    return cls(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()})


@functools.cache
def _hints(cls: type) -> dict[str, object]:
    return typing.get_type_hints(cls)


def _value(hint: object, value: object, where: str) -> object:
    """`value` as the type `hint`: records, tuples, mappings, optional values and numbers."""
    if hint is object:
        return _free(value, where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal and value in args:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _value(next(a for a in args if a is not type(None)), value, where)
    if dataclasses.is_dataclass(hint):
        return record(hint, value, where)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_value(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {str(key): _value(args[1], item, f"{where}.{key}") for key, item in value.items()}
    _check_size(value, where)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is float and value in ("inf", "-inf", "nan"):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    found = repr(value)[:80] if isinstance(value, (str, int, float)) else type(value).__name__
    raise UsageError(f"expected {hint} at {where}, found {found}: the file is damaged, measure again")


def _free(value: object, where: str, depth: int = 0) -> object:
    """A value of any form, not too deep and of no senseless numbers."""
    if depth > DEEPEST:
        raise UsageError(f"at most {DEEPEST} levels were expected at {where}: the file is damaged, measure again")
    if isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            _free(item, where, depth + 1)
    _check_size(value, where)
    return value


def _check_size(value: object, where: str) -> None:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise UsageError(f"a number of sensible size was expected at {where}: the file is damaged, measure again")
