"""Places of ScatterND that are known and form a box: how torch's exporter writes `x[:, 2:5] = u`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax, te, tirx

from ._node import Node


@dataclass(frozen=True)
class Side:
    """Places `start + step * i` of an axis, i below `count`; `along` is the axis of the places that counts them."""

    start: int
    step: int
    count: int
    along: int | None

    def meets(self, place: ir.Expr, size: int) -> list[ir.Expr]:
        """What holds at the places of the side alone."""
        found = [place >= self.start] if self.start else []
        if self.start + self.step * (self.count - 1) < size - 1:
            found.append(place <= self.start + self.step * (self.count - 1))
        if self.step > 1:
            found.append(tirx.floormod(place - self.start, self.step) == 0)
        return found


def box_of(places: np.ndarray, sizes: Sequence[object]) -> list[Side] | None:
    """The sides of the box that `places` [*counts, rank] name in axes of `sizes`, each once; None where it is none."""
    *counts, rank = places.shape
    known = [size for size in sizes[:rank] if isinstance(size, int)]
    if not places.size or len(known) < rank:
        return None
    at = np.where(places < 0, places + np.array(known), places)
    if np.any(at < 0) or np.any(at >= known):
        return None
    sides = [_side(at[..., k], counts) for k in range(rank)]
    found = [side for side in sides if side is not None]
    used = [side.along for side in found if side.along is not None]
    named_once = sorted(used) == [axis for axis, count in enumerate(counts) if count > 1]
    return found if len(found) == rank and named_once else None


def _side(at: np.ndarray, counts: Sequence[int]) -> Side | None:
    start = int(at.flat[0])
    changing = [a for a, count in enumerate(counts) if count > 1 and np.any(at.take(0, a) != at.take(1, a))]
    if not changing:
        return Side(start, 1, 1, None) if np.all(at == start) else None
    axis = changing[0]
    step = int(at.take(1, axis).flat[0]) - start
    line = start + step * np.arange(counts[axis]).reshape([-1 if a == axis else 1 for a in range(len(counts))])
    return Side(start, step, counts[axis], axis) if step > 0 and np.all(at == line) else None


def write_box(node: Node, data: relax.Expr, updates: relax.Expr, box: Sequence[Side], axes: int) -> relax.Expr:
    """`data` with `updates` in `box`, whose places had `axes` axes: every element is read from one of both."""

    def compute(data: te.Tensor, updates: te.Tensor) -> te.Tensor:
        def element(*i: tirx.Var) -> ir.Expr:
            inside: list[ir.Expr] = []
            at: list[ir.Expr | int] = [0] * axes
            for place, side, size in zip(i, box, data.shape):
                inside += side.meets(place, int(size))
                if side.along is not None:
                    at[side.along] = tirx.floordiv(place - side.start, side.step)
            value = updates(*at, *i[len(box) :])
            return tirx.if_then_else(tirx.all(*inside), value, data(*i)) if inside else value

        return te.compute(data.shape, element, name="write_box")

    return node.te(compute, data, updates, name="write_box")
