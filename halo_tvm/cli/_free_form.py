"""Reading a manifest's reports, which are free in form and untrusted: what is not as expected counts as not there."""

from __future__ import annotations

import math
from collections.abc import Mapping

_MIB = 1 << 20
_LARGEST = 1 << 63  # no honest count or size comes near


def mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []


def mappings(value: object) -> list[Mapping[str, object]]:
    """The objects of a list of objects."""
    return [item for item in items(value) if isinstance(item, Mapping)]


def count(value: object) -> int | None:
    """A whole number from 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST else None


def real(value: object) -> float | None:
    """A finite number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _LARGEST or (isinstance(value, float) and math.isfinite(value)) else None


def mib(value: object) -> float | None:
    """Bytes in MiB."""
    size_bytes = count(value)
    return None if size_bytes is None else size_bytes / _MIB


def counts(value: object) -> dict[str, int]:
    """The whole numbers of an object."""
    return {str(key): found for key, item in mapping(value).items() if (found := count(item)) is not None}
