"""Arithmetic on sizes: small tensors of integers that follow from constants and from the sizes of inputs.

A file with open sizes writes them as tensors (`get_dimension_size`, add, reshape, concatenate). Here they are NumPy
arrays whose elements are integers or symbolic sizes of jax: what shapes are made of is known while tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ._counter import clamped, counters
from ._operation import Operation

_MOST_ELEMENTS = 64
_LOGICAL = ("and", "or", "not")  # of integers they are about bits
_MOVED = ("convert", "reshape", "concatenate", "slice", "broadcast_in_dim", "select")
_OF_COUNTERS = ("add", "subtract", "negate", "clamp", "compare", *_MOVED)
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


def known(o: Operation) -> NDArray[Any] | None:
    """The result of an operation on known sizes; None where it is left to jax."""
    function = _FUNCTIONS.get(o.name)
    if function is None or not o.known:
        return None
    given = [v for v in o.known if isinstance(v, np.ndarray) and v.size <= _MOST_ELEMENTS and v.dtype.kind in "Oiub"]
    if len(given) < len(o.known) or o.dtype.kind not in "iub":
        return None
    if o.name in _LOGICAL and o.dtype != bool or o.name not in _OF_COUNTERS and any(map(counters, given)):
        return None
    try:
        return _held(function(o, *given), o.dtype)
    except (jax.errors.InconclusiveDimensionOperation, ZeroDivisionError, OverflowError):
        return None


def _held(array: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers in `dtype`, symbolic sizes as they are; OverflowError for a number that wraps around in it."""
    given: NDArray[Any] = np.asarray(array)
    if given.dtype == object and not all(isinstance(v, int | np.generic) for v in given.reshape(-1)):
        return given
    out: NDArray[Any] = np.array([np.asarray(_plain(v), dtype) for v in given.reshape(-1)], dtype)
    return out.reshape(given.shape)


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of single sizes as one of arrays, which are of one shape in StableHLO."""

    def apply(_: Operation, *arrays: NDArray[Any]) -> NDArray[Any]:
        out = np.empty(arrays[0].shape, object)
        for place in np.ndindex(out.shape):
            out[place] = function(*(_plain(a[place]) for a in arrays))
        return out

    return apply


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _compared(o: Operation, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    direction = o.text("comparison_direction")

    def one(x: Any, y: Any) -> bool:
        # jax calls sizes unequal that it cannot tell apart: only the sign of the difference decides.
        if direction in ("EQ", "NE") and not x == y:
            return bool(x > y or x < y) == (direction == "NE")
        return bool(_COMPARED[direction](x, y))

    out: NDArray[Any] = _each(one)(o, a, b)
    return out


def _quotient(a: Any, b: Any) -> Any:
    """Rounded to zero, as StableHLO does: of symbolic sizes only where that is the same as rounding down."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if not (a >= 0 and b > 0):
        raise jax.errors.InconclusiveDimensionOperation(f"{a} / {b}")
    return a // b


def _remainder(a: Any, b: Any) -> Any:
    return a - _quotient(a, b) * b


def _sign(a: Any) -> int:
    return 1 if a > 0 else -1 if a < 0 else 0


def _sliced(o: Operation, x: NDArray[Any]) -> NDArray[Any]:
    bounds = zip(o.numbers("start_indices"), o.numbers("limit_indices"), o.numbers("strides"), strict=True)
    return x[tuple(slice(*b) for b in bounds)]


def _spread(o: Operation, x: NDArray[Any]) -> NDArray[Any]:
    shape = tuple(o.op.results[0].type.shape)
    own = [1] * len(shape)
    for axis, size in zip(o.numbers("broadcast_dimensions"), x.shape, strict=True):
        own[axis] = size
    return np.broadcast_to(x.reshape(own), shape)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": _each(lambda a, b: a + b),
    "subtract": _each(lambda a, b: a - b),
    "multiply": _each(lambda a, b: a * b),
    "divide": _each(_quotient),
    "remainder": _each(_remainder),
    "maximum": _each(jax.core.max_dim),
    "minimum": _each(jax.core.min_dim),
    "negate": _each(lambda a: -a),
    "sign": _each(_sign),
    "not": _each(lambda a: not a),
    "and": _each(lambda a, b: bool(a and b)),
    "or": _each(lambda a, b: bool(a or b)),
    "select": _each(lambda p, a, b: a if p else b),
    "clamp": _each(clamped),
    "compare": _compared,
    "convert": lambda o, x: x if o.dtype != bool else _each(lambda a: a != 0)(o, x),
    "reshape": lambda o, x: x.reshape(tuple(o.op.results[0].type.shape)),
    "concatenate": lambda o, *parts: np.concatenate([p.astype(object) for p in parts], o.number("dimension")),
    "slice": _sliced,
    "broadcast_in_dim": _spread,
}
