"""Reading images at places that are computed: grid sampling."""

from __future__ import annotations

import itertools
import math

from tvm import ir, relax, te, tirx

from ...relay_ops.operator import OPAQUE, chosen
from .broadcast import same_sizes
from .builder import Builder, expr_dtype, expr_shape
from .sizes import Dim, prim

MODES = ("linear", "cubic", "nearest")
PADDINGS = ("zeros", "border", "reflection")


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
    dtype = "float64" if expr_dtype(grid) == "float64" else "float32"
    brought_inside = padding != "zeros" and mode != "cubic"  # of a cube, each neighbour is, for itself
    keeps_nan = rank == 2 and mode != "nearest" and not brought_inside

    one, half = tirx.const(1, dtype), tirx.const(0.5, dtype)

    def place_all(grid: te.Tensor, *space: Dim) -> te.Tensor:
        sizes = [prim(n) for n in space]
        borders = [_border(n, corners, dtype) for n in sizes]

        def place(*index: ir.Expr) -> ir.Expr:
            n, where, axis = index[0], index[1:-1], index[-1]
            out = tirx.const(0, dtype)
            for a in range(rank):
                at = grid[(n, *where, rank - 1 - a)].astype(dtype)
                length = sizes[a].astype(dtype)
                at = (at + one) * half * (length - one) if corners else ((at + one) * length - one) * half
                if mode == "nearest":
                    at = te.nearbyint(at)
                low, high = borders[a]
                if padding == "reflection":
                    at = _reflected(at, low, high, dtype)
                if brought_inside:  # also what was no number before, or infinite and reflected
                    at = tirx.Select(tirx.isnan(at), tirx.const(0, dtype), at)
                if brought_inside and padding == "border":
                    at = tirx.max(tirx.min(at, length - one), tirx.const(0, dtype))
                # Far away is outside all the same; the bounds keep the conversion to integers defined.
                near = tirx.max(tirx.min(at, length + tirx.const(4, dtype)), tirx.const(-4, dtype))
                at = tirx.Select(tirx.isfinite(at), near, tirx.const(math.nan, dtype)) if keeps_nan else near
                out = at if a == 0 else tirx.Select(axis == a, at, out)
            return out

        return te.compute([*grid.shape[:-1], rank], place, name="places")

    def compute(x: te.Tensor, places: te.Tensor) -> te.Tensor:
        sizes = list(x.shape[2:])
        borders = [_border(n, corners, dtype) for n in sizes]
        taps = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
        shape = [x.shape[0], x.shape[1], *places.shape[1:-1]]

        def element(*index: ir.Expr) -> ir.Expr:
            n, c, where = index[0], index[1], index[2:]
            lows, weights = [], []
            for a in range(rank):
                at = places[(n, *where, a)]
                low = te.floor(tirx.Select(tirx.isnan(at), tirx.const(0, dtype), at) if keeps_nan else at)
                lows.append(low.astype("int64"))
                weights.append(_shares(at - low, mode, dtype))
            total = tirx.const(0, dtype)
            for choice in itertools.product(range(len(taps)), repeat=rank):
                share = one
                at, inside = [], []
                for a, tap in enumerate(choice):
                    share = share * weights[a][tap]
                    position = lows[a] + taps[tap]
                    if padding == "zeros":
                        inside += [position >= 0, position < sizes[a]]
                    elif padding == "reflection":
                        low, high = borders[a]
                        position = _reflected(position.astype(dtype), low, high, dtype).astype("int64")
                    at.append(clipped(position, sizes[a]))
                value = x[(n, c, *at)].astype(dtype)
                if inside:  # what is read in its place is there, so that vectors need no branch
                    value = chosen(tirx.all(*inside), value, tirx.const(0, dtype))
                total = total + value * share
            return total.astype(x.dtype)

        return te.compute(shape, element, name="sampled")

    # Read by every channel, so places are not computed where they are read.
    places = builder.te(place_all, grid, *expr_shape(x)[2:], name="gridplaces", primfunc_attrs={"op_pattern": OPAQUE})
    return builder.te(compute, x, places, name="gridsample")


def _border(size: ir.Expr, corners: bool, dtype: str) -> tuple[ir.Expr, ir.Expr]:
    length = size.astype(dtype)
    if corners:
        return tirx.const(0, dtype), length - tirx.const(1, dtype)
    return tirx.const(-0.5, dtype), length - tirx.const(0.5, dtype)


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


def clipped(index: ir.Expr, size: ir.Expr) -> ir.Expr:
    """The index of an axis of `size` elements that is nearest to `index`."""
    return tirx.max(tirx.min(index, size - 1), tirx.const(0, "int64"))
