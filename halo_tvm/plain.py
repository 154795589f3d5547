"""Values that TVM wraps, as plain Python."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, tirx


def plain(value: object) -> object:
    """An attribute or annotation as numbers, strings, tuples and dictionaries; anything else as its text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        return bool(value.value) if str(value.ty.dtype) == "bool" else value.value
    if isinstance(value, (ir.Array, list, tuple)):
        return tuple(plain(v) for v in value)
    if isinstance(value, (ir.Map, Mapping)):
        return {str(k): plain(v) for k, v in value.items()}
    return str(value)
