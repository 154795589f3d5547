"""Reading images at places that are computed: grid sampling."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tvm import ir, relax, te, tirx

from ...relay_ops.operator import OPAQUE, chosen, clamped
from .broadcast import same_sizes
from .builder import Builder, expr_dtype, expr_shape
from .sizes import prim

PADDINGS = ("zeros", "border", "reflection")
# mode: the first neighbour of a place along an axis, from the place's floor on, and how many there are
_NEIGHBOURS = {"linear": (0, 2), "cubic": (-1, 4), "nearest": (0, 1)}
MODES = tuple(_NEIGHBOURS)


def grid_sampling(
    builder: Builder, x: relax.Expr, grid: relax.Expr, mode: str, padding: str, corners: bool
) -> relax.Expr:
    """`x` [n, c, *space] at places `grid` [n, *wanted, axes], from -1 to 1 along every axis, innermost axis first.

    padding: what is read outside, of `PADDINGS`
    corners: whether -1 and 1 are the centres of the outermost elements, not their edges

    What is read at a place that is no number is torch's: NaN in a plane where neighbours have shares, the first element
    where places are brought inside before, 0 elsewhere.
    """
    rank = len(expr_shape(x)) - 2
    builder.refuse_unless(mode in MODES, f"expected mode linear, cubic or nearest, found {mode}")
    builder.refuse_unless(padding in PADDINGS, f"expected padding zeros, border or reflection, found {padding}")
    fits = rank > 0 and len(expr_shape(grid)) == rank + 2
    builder.refuse_unless(fits, "expected x and grid of one rank from 3 on")
    grid = same_sizes(builder, grid, [expr_shape(x)[0], *expr_shape(grid)[1:-1], rank], "grid")
    images, channels, *space = map(prim, expr_shape(x))
    wanted = [prim(d) for d in expr_shape(grid)[1:-1]]
    elements, count = (math.prod(sizes, start=prim(1)) for sizes in (space, wanted))
    fits = not isinstance(elements, tirx.IntImm) or int(elements) < 1 << 31
    builder.refuse_unless(fits, f"expected fewer than 2^31 elements in a plane, found {elements}")

    dtype = "float64" if expr_dtype(grid) == "float64" else "float32"
    sampling = _Sampling(mode, padding, corners, rank, dtype)
    kept = {"primfunc_attrs": {"op_pattern": OPAQUE}}  # every channel reads it: it is not computed where it is read
    grid = builder.emit(relax.op.reshape(grid, [images, count, rank]))
    places = builder.te(sampling.places, grid, *space, name="gridplaces", **kept)
    read = [builder.te(sampling.neighbours, places, *space, name="gridneighbours", **kept)]
    if mode != "nearest":
        read.append(builder.te(sampling.shares, places, name="gridshares", **kept))
    planes = builder.emit(relax.op.reshape(x, [images, channels, elements]))
    out = builder.te(sampling.sampled, planes, *read, name="gridsample")
    return builder.emit(relax.op.reshape(out, [images, channels, *wanted]))


@dataclass(frozen=True)
class _Sampling:
    """The steps: i counts the places of an image, and a tap is a neighbour of a place along one axis."""

    mode: str
    padding: str
    corners: bool
    rank: int
    dtype: str

    @property
    def _taps(self) -> int:
        return _NEIGHBOURS[self.mode][1]

    @property
    def _is_brought_inside(self) -> bool:
        """Whether a place is; of a cube each neighbour is, for itself."""
        return self.padding != "zeros" and self.mode != "cubic"

    @property
    def _keeps_nan(self) -> bool:
        return self.rank == 2 and self.mode != "nearest" and not self._is_brought_inside

    def places(self, grid: te.Tensor, *sizes: ir.Expr) -> te.Tensor:
        """[n, axis, i]: places in elements, outermost axis first."""
        one, half, zero = self._const(1), self._const(0.5), self._const(0)

        def place(n: ir.Expr, axis: ir.Expr, i: ir.Expr) -> ir.Expr:
            size = _number(axis, sizes)
            length, at = size.astype(self.dtype), grid[n, i, self.rank - 1 - axis].astype(self.dtype)
            at = (at + one) * half * (length - one) if self.corners else ((at + one) * length - one) * half
            if self.mode == "nearest":
                at = te.nearbyint(at)
            if self.padding == "reflection":
                at = _reflected(at, *self._border(size), self.dtype)
            if self._is_brought_inside:  # also what was no number before, or infinite and reflected
                at = tirx.Select(tirx.isnan(at), zero, at)
            if self._is_brought_inside and self.padding == "border":
                at = tirx.max(tirx.min(at, length - one), zero)
            # Far away is outside all the same; the bounds keep the conversion to integers defined.
            near = tirx.max(tirx.min(at, length + self._const(4)), self._const(-4))
            return tirx.Select(tirx.isfinite(at), near, self._const(math.nan)) if self._keeps_nan else near

        return te.compute([grid.shape[0], self.rank, grid.shape[1]], place, name="places")

    def neighbours(self, places: te.Tensor, *sizes: ir.Expr) -> te.Tensor:
        """[n, axis, tap, i]: how far a neighbour's row, column, ... is from the plane's first element, or -1."""
        first, _ = _NEIGHBOURS[self.mode]
        steps = [math.prod(sizes[a + 1 :], start=prim(1)) for a in range(self.rank)]

        def neighbour(n: ir.Expr, axis: ir.Expr, tap: ir.Expr, i: ir.Expr) -> ir.Expr:
            position = self._floor(places[n, axis, i]).astype("int64") + first + tap
            size, step = _number(axis, sizes), _number(axis, steps)
            if self.padding == "reflection":
                position = _reflected(position.astype(self.dtype), *self._border(size), self.dtype).astype("int64")
            out = clamped(position, size) * step
            if self.padding == "zeros":
                out = tirx.Select(tirx.all(position >= 0, position < size), out, tirx.const(-1, "int64"))
            return out.astype("int32")

        return te.compute([places.shape[0], self.rank, self._taps, places.shape[2]], neighbour, name="neighbours")

    def shares(self, places: te.Tensor) -> te.Tensor:
        """[n, axis, tap, i]: weights of the neighbours along an axis."""

        def share(n: ir.Expr, axis: ir.Expr, tap: ir.Expr, i: ir.Expr) -> ir.Expr:
            at = places[n, axis, i]
            return _number(tap, _shares(at - self._floor(at), self.mode, self.dtype))

        shape = [places.shape[0], self.rank, self._taps, places.shape[2]]
        return te.compute(shape, share, name="shares")

    def sampled(self, x: te.Tensor, neighbours: te.Tensor, *shares: te.Tensor) -> te.Tensor:
        """[n, c, i]: sums of neighbours in planes x [n, c, element]; without `shares` there is one neighbour."""

        def element(n: ir.Expr, c: ir.Expr, i: ir.Expr) -> ir.Expr:
            total = self._const(0)
            for taps in itertools.product(range(self._taps), repeat=self.rank):
                ways = [neighbours[n, a, tap, i] for a, tap in enumerate(taps)]
                at = reduce(operator.add, ways)
                if self.padding == "zeros":  # what is read in its place is there, so that vectors need no branch
                    value = x[n, c, tirx.max(at, tirx.const(0, "int32"))].astype(self.dtype)
                    value = chosen(reduce(tirx.bitwise_or, ways) >= 0, value, self._const(0))
                else:
                    value = x[n, c, at].astype(self.dtype)
                if shares:
                    value = value * reduce(operator.mul, (shares[0][n, a, tap, i] for a, tap in enumerate(taps)))
                total = total + value
            return total.astype(x.dtype)

        return te.compute([x.shape[0], x.shape[1], neighbours.shape[3]], element, name="sampled")

    def _floor(self, at: ir.Expr) -> ir.Expr:
        return te.floor(tirx.Select(tirx.isnan(at), self._const(0), at) if self._keeps_nan else at)

    def _border(self, size: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
        length = size.astype(self.dtype)
        if self.corners:
            return self._const(0), length - self._const(1)
        return self._const(-0.5), length - self._const(0.5)

    def _const(self, value: float) -> ir.Expr:
        return tirx.const(value, self.dtype)


def _number(number: ir.Expr, values: Sequence[ir.Expr]) -> ir.Expr:
    """values[number], computed."""
    out = values[-1]
    for i, value in enumerate(values[:-1]):
        out = tirx.Select(number == i, value, out)
    return out


def _reflected(at: ir.Expr, low: ir.Expr, high: ir.Expr, dtype: str) -> ir.Expr:
    """`at` mirrored at both ends until it is between them."""
    span = tirx.max(high - low, tirx.const(1e-6, dtype))

    def folded(distance: ir.Expr, near: ir.Expr, sign: int) -> ir.Expr:
        turns = te.trunc(distance / span)
        rest = distance - turns * span
        odd = turns - te.floor(turns * tirx.const(0.5, dtype)) * tirx.const(2, dtype) != tirx.const(0, dtype)
        far = high if sign > 0 else low
        return tirx.Select(odd, far - rest if sign > 0 else far + rest, near + rest if sign > 0 else near - rest)

    below, above = folded(low - at, low, 1), folded(at - high, high, -1)
    return tirx.Select(at < low, below, tirx.Select(at > high, above, at))


def _shares(rest: ir.Expr, mode: str, dtype: str) -> list[ir.Expr]:
    """Weights of the neighbours of a place that is `rest` behind its left one."""

    def f(value: float) -> ir.Expr:
        return tirx.const(value, dtype)

    if mode == "nearest":
        return [f(1)]
    if mode == "linear":
        return [f(1) - rest, rest]
    a = -0.75
    out = []
    for distance, near in ((rest + f(1), False), (rest, True), (f(1) - rest, True), (f(2) - rest, False)):
        if near:
            out.append((f(a + 2) * distance - f(a + 3)) * distance * distance + f(1))
        else:
            out.append(((f(a) * distance - f(5 * a)) * distance + f(8 * a)) * distance - f(4 * a))
    return out
