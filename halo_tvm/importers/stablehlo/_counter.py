"""The counter of a loop, as a size that is known while the loop's body is carried out.

    Counter(loop, a, b)     a * i + b at step i of 0 .. length - 1; a is 1 or -1, b a number or a symbolic size

What the body reads and writes at it is found so (`operations/scans.py`), whatever the steps in which the file makes an
index of it. Where the body computes with the counter itself, it becomes the number that it is at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax


class NoScan(Exception):
    """A loop that does something else than a `scan` can do; it stays a loop."""


@dataclass(eq=False)
class Unread:
    """A tensor of `shape` of which each step sets a row, `row` once that is done, and does nothing else with it."""

    shape: tuple[Any, ...]
    row: Any = None


@dataclass(eq=False)
class Loop:
    """What is known of a loop whose body is carried out."""

    length: Any
    at: Any  # the step, as the traced array that it is
    outer: frozenset[int]  # ids of the tensors that are there before the loop
    rows: dict[int, Any] = field(default_factory=dict)  # id of a tensor -> its row of this step
    counts: bool = False  # whether the body computed with the step
    read: dict[int, Any] = field(default_factory=dict)  # id of a tensor -> that of which rows were read
    written: dict[int, tuple[Any, Any]] = field(
        default_factory=dict
    )  # id of a result -> a tensor with a row set, and it
    directions: set[bool] = field(default_factory=set)  # whether rows were met in reverse order


class Counter:
    def __init__(self, loop: Loop, a: int = 1, b: Any = 0) -> None:
        self.loop, self.a, self.b = loop, a, b

    @property
    def array(self) -> Any:
        """The number at run time."""
        self.loop.counts = True
        return self.loop.at * self.a + jax.numpy.asarray(self.b, "int32")

    @property
    def least(self) -> Any:
        return self.b if self.a > 0 else self.b - (self.loop.length - 1)

    @property
    def most(self) -> Any:
        return self.b if self.a < 0 else self.b + (self.loop.length - 1)

    def direction(self) -> bool | None:
        """Whether these are all steps in reverse order, None where they are not all steps."""
        if self.a > 0:
            return False if bool(self.b == 0) else None
        return True if bool(self.b == self.loop.length - 1) else None

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Counter):
            if other.loop is self.loop and self.a + other.a == 0:
                return self.b + other.b
            raise _undecided(self)
        return Counter(self.loop, self.a, self.b + other)

    __radd__ = __add__

    def __neg__(self) -> Counter:
        return Counter(self.loop, -self.a, -self.b)

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __lt__(self, other: Any) -> bool:
        if not isinstance(other, Counter):
            if self.most < other:
                return True
            if self.least >= other:
                return False
        raise _undecided(self)

    def __ge__(self, other: Any) -> bool:
        return not bool(self < other)

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __le__(self, other: Any) -> bool:
        return bool(self < other + 1)

    def __eq__(self, other: object) -> bool:
        raise _undecided(self)

    __hash__ = None  # type: ignore[assignment]


def _undecided(counter: Counter) -> Any:
    return jax.errors.InconclusiveDimensionOperation(f"a step of a loop of {counter.loop.length}")


def counters(array: Any) -> bool:
    """Whether `array`, a value, has counters among its elements."""
    return isinstance(array, np.ndarray) and array.dtype == object and any(isinstance(v, Counter) for v in array.flat)


def clamped(low: Any, x: Any, high: Any) -> Any:
    """x where it is known to lie between the others."""
    if x >= low and x <= high:
        return x
    raise jax.errors.InconclusiveDimensionOperation(f"{x} between {low} and {high}")


def row_of(x: Any, starts: Sequence[Any], sizes: Sequence[Any]) -> Any | None:
    """The row that the slice of `x` of `sizes` at `starts` is, None where it is none that a scan can give."""
    loop = _rows_of(x, starts, sizes)
    if loop is None or id(x) not in loop.outer:
        return None
    loop.read[id(x)] = x
    if id(x) in loop.rows:
        return loop.rows[id(x)]
    if loop.rows:  # met only now
        raise NoScan
    return lax.dynamic_slice(x, _at(loop, len(starts)), sizes)  # of the right shape: nobody runs it


def with_row(x: Any, starts: Sequence[Any], update: Any, row: Any) -> Any | None:
    """`x` with a row set by the step, `row` if it is known alone; None where the update is something else."""
    loop = _rows_of(x, starts, update.shape)
    if loop is None:
        return None
    if isinstance(x, Unread):
        return Unread(x.shape, lax.squeeze(update, (0,)) if row is None else row)
    made = lax.dynamic_update_slice(x, update, _at(loop, len(starts)))  # nobody runs it
    loop.written[id(made)] = (x, made)
    return made


def _rows_of(x: Any, starts: Sequence[Any], sizes: Sequence[Any]) -> Loop | None:
    """The loop whose step names the row of `x` that a slice of `sizes` at `starts` is."""
    if not len(starts) or not all(isinstance(v, Counter | int | np.ndarray | np.generic) for v in starts):
        return None
    first, *rest = (v.reshape(-1)[0] if isinstance(v, np.ndarray) else v for v in starts)
    if not isinstance(first, Counter) or any(isinstance(v, Counter) or v != 0 for v in rest):
        return None
    loop, is_reversed = first.loop, first.direction()
    shape = (loop.length, *x.shape[1:])
    if is_reversed is None or tuple(x.shape) != shape or tuple(sizes) != (1, *shape[1:]):
        return None
    loop.directions.add(is_reversed)
    return loop


def _at(loop: Loop, rank: int) -> list[Any]:
    return [loop.at, *[np.int32(0)] * (rank - 1)]
