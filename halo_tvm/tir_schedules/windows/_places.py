"""Places of windows, one after the other: to divide by an open size takes longer than a window of few channels."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..code.lanes import constant, index, simplify, unravel
from ._match import Windows


class RunningPlace:
    """Batch and place of a window, kept while a kernel runs; `advance` goes on to the next one."""

    def __init__(self, w: Windows, row: ir.Expr) -> None:
        self._extents = [w.batch, *w.places]
        self._at = T.alloc_buffer((len(self._extents),), "int64")
        # There may be no window at all: an open size of zero divides nothing.
        least = [size if constant(size) is not None else tirx.max(size, index(1)) for size in self._extents]
        for axis, at in enumerate(unravel(simplify(row), least)):
            T.buffer_store(self._at, at, [axis])

    @property
    def axes(self) -> Sequence[ir.Expr]:
        """The batch, and the place along each axis."""
        return [self._at[axis] for axis in range(len(self._extents))]

    def advance(self, step: ir.Expr | int = 1) -> None:
        """Go on by `step`, one or none."""
        carry = index(step) if isinstance(step, int) else step
        for axis in range(len(self._extents) - 1, 0, -1):
            moved = T.alloc_buffer((1,), "int64")
            T.buffer_store(moved, self._at[axis] + carry, [0])
            ends = moved[0] == self._extents[axis]
            T.buffer_store(self._at, tirx.Select(ends, index(0), moved[0]), [axis])
            carry = tirx.Select(moved[0] == self._extents[axis], index(1), index(0))
        T.buffer_store(self._at, self._at[0] + carry, [0])
