"""What is decided about the reductions of a function, and which decisions are none."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import Declined
from ...code.lanes import constant
from ._program import Reduction

NONE = -1
MOST_NESTS, _MOST_VECTORS = 64, 64


@dataclass(frozen=True)
class Decision:
    """One entry for each reduction in the tuples. Iterators are numbered: axes first, steps behind them."""

    vector: tuple[int, ...]  # iterator in the vectors; a step: vectors of partial sums
    lanes: tuple[int, ...]  # elements of a vector
    vectors: tuple[int, ...]  # vectors of a tile along it
    row: tuple[int, ...]  # axis of which a tile holds several, -1 for none
    height: tuple[int, ...]  # so many of it
    tasks: int  # at most so many parallel runs of tiles
    serial_below: int  # iterations; less work than this runs on one thread

    def tilings(self, reductions: tuple[Reduction, ...]) -> tuple[Tiling, ...]:
        """The tiling of each reduction; `Declined` where they do not fit."""
        fields = (self.vector, self.lanes, self.vectors, self.row, self.height)
        if any(len(field) != len(reductions) for field in fields):
            raise Declined(f"the decision is of {len(self.vector)} reductions, the function has {len(reductions)}")
        found = tuple(Tiling(*values) for values in zip(*fields))
        for tiling, reduction in zip(found, reductions):
            tiling.check(reduction)
        return found


@dataclass(frozen=True)
class Tiling:
    """The decision about one reduction."""

    vector: int
    lanes: int
    vectors: int
    row: int
    height: int

    def is_partial(self, reduction: Reduction) -> bool:
        """Whether vectors lie along a step, so that they hold partial results."""
        return self.vector >= len(reduction.axes)

    def check(self, reduction: Reduction) -> None:
        """`Declined` where the tile is not one of `reduction`."""
        axes = len(reduction.axes)
        if not NONE <= self.vector < axes + len(reduction.steps):
            raise Declined(
                f"iterator {self.vector} shall be vectorised, the reduction has {axes + len(reduction.steps)}"
            )
        if not NONE <= self.row < axes or self.row == self.vector and self.row != NONE:
            raise Declined(
                f"axis {self.row} shall be tiled beside iterator {self.vector}, the reduction has {axes} axes"
            )
        if self.vector == NONE and self.lanes * self.vectors > 1 or self.row == NONE and self.height > 1:
            raise Declined("a tile of several elements along no iterator")
        if self.vectors * self.height > _MOST_VECTORS:
            raise Declined(f"a tile of {self.vectors * self.height} vectors, the rule serves up to {_MOST_VECTORS}")
        if self.is_partial(reduction) and any(total.operation is None for total in reduction.totals):
            raise Declined("the steps of the reduction come in order: it has no partial results")
        for iterator, size in ((self.vector, self.lanes * self.vectors), (self.row, self.height)):
            extent = constant(reduction.iterators[iterator][1]) if iterator != NONE else None
            if extent is not None and size > extent:
                raise Declined(f"a tile of {size} along an iterator of {extent}")
