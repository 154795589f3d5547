"""Orders. What a comparator means is asked of itself: evaluated for pairs, and compared with the orders of jax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from numpy.typing import NDArray

from .._operation import Operation, Value, operation

_PAIRS = 256


@operation("sort")
def sort(o: Operation) -> Sequence[Value]:
    """By the first keys ascending, or by the first one descending; equal ones stay in their order."""
    values, axis = o.values, o.number("dimension")
    keys = _keys(o, [v.dtype for v in values])
    if keys > 0:
        found = lax.sort(values, dimension=axis, is_stable=True, num_keys=keys)
        return list(found)
    moved = jnp.moveaxis(values[0], axis, -1)
    order = jnp.moveaxis(lax.top_k(moved, moved.shape[-1])[1], -1, axis)
    return [jnp.take_along_axis(v, order, axis, mode="clip") for v in values]


def _keys(o: Operation, dtypes: Sequence[Any]) -> int:
    """How many operands are compared, one after another; -1: the first one, the largest first."""
    rng = np.random.default_rng(0)
    left, right = ([_drawn(rng, dtype) for dtype in dtypes] for _ in range(2))
    mixed = [array for pair in zip(left, right) for array in pair]
    with jax.ensure_compile_time_eval():
        found = np.asarray(jax.vmap(lambda *pair: o.region()(*pair)[0])(*map(jnp.asarray, mixed)))
    if np.array_equal(found, np.asarray(left[0] > right[0])):
        return -1
    for count in range(1, len(dtypes) + 1):
        if np.array_equal(found, _before(left[:count], right[:count])):
            return count
    raise o.refuse("a comparator that is neither of the first operands ascending nor of the first one descending")


def _drawn(rng: np.random.Generator, dtype: Any) -> NDArray[Any]:
    """Few different values, so that equal ones meet: of both signs and no whole numbers where there are such.

    No NaN and no -0, whose places jax and the files agree on.
    """
    kind = jnp.dtype(dtype).kind
    if kind in "bu":
        return rng.integers(0, 2 if kind == "b" else 6, _PAIRS).astype(dtype)
    whole = rng.integers(-3, 4, _PAIRS)
    return (whole if kind == "i" else whole / 2).astype(dtype)


def _before(left: Sequence[NDArray[Any]], right: Sequence[NDArray[Any]]) -> NDArray[Any]:
    out: NDArray[Any] = np.zeros(_PAIRS, bool)
    for a, b in zip(reversed(left), reversed(right)):
        out = (a < b) | ((a == b) & out)
    return out
