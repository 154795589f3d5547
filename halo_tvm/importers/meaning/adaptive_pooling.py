"""Adaptive pooling: an image is cut into as many windows as the result has elements; neighbours may overlap.

window(o) = [floor(o * size / wanted), ceil((o + 1) * size / wanted)) along each spatial axis
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, relax, te, tirx

from ...extremes import maximum
from ...relay_ops.parts.in_order import element_count
from ...relay_ops.pooling import least
from .builder import Builder, expr_shape
from .pooling import first_place, global_pooling, place_of, pooling
from .sizes import Dim, plain, prim
from .windows import Window


def adaptive_pooling(builder: Builder, x: relax.Expr, wanted: Sequence[Dim], kind: str) -> relax.Expr:
    """`x` [n, c, *space] -> [n, c, *wanted] by the largest element ("max") or the mean ("average") of each window."""
    space = expr_shape(x)[2:]
    if all(isinstance(w, int) and w == 1 for w in wanted):
        return global_pooling(builder, x, kind)
    if builder.sizes.same_shape(space, wanted):
        return x
    window = even_window(space, wanted)
    if window is not None:
        return pooling(builder, x, window, kind)

    def compute(x: te.Tensor) -> te.Tensor:
        bounds, ks = _bounds(x, wanted)
        wide = "float32" if kind == "average" and str(x.dtype) in ("float16", "bfloat16") else str(x.dtype)
        outside = least(wide) if kind == "max" else tirx.const(0, wide)

        def at(*i: ir.Expr) -> ir.Expr:
            inside, sources = _sources(i, bounds, ks)
            value = tirx.if_then_else(inside, x[(*i[:2], *sources)].astype(wide), outside)
            return _largest(value, ks) if kind == "max" else te.sum(value, axis=ks)

        out = te.compute([*x.shape[:2], *map(prim, wanted)], at, name="pooling")
        if kind == "max":
            return out

        def mean(*i: ir.Expr) -> ir.Expr:
            count = element_count([end(o) - start(o) for o, (start, end) in zip(i[2:], bounds)])
            return (out[i] / count.astype(wide)).astype(x.dtype)

        return te.compute(out.shape, mean, name="mean")

    return builder.te(compute, x, name="adaptive_pooling")


def even_window(space: Sequence[Dim], wanted: Sequence[Dim]) -> Window | None:
    """The one window that all elements have, where sizes are multiples of those wanted."""
    pairs = list(zip(space, wanted))
    if not all(isinstance(a, int) and isinstance(b, int) and b > 0 and a % b == 0 for a, b in pairs):
        return None
    kernel = tuple(a // b for a, b in pairs)
    return Window(kernel, kernel, (1,) * len(kernel), (0, 0) * len(kernel))


def adaptive_places(builder: Builder, x: relax.Expr, out: relax.Expr) -> relax.Expr:
    """Where the largest element of each window is: its number within one channel of one image, int64."""

    def compute(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        bounds, ks = _bounds(x, [plain(d) for d in y.shape[2:]])

        def at(*i: ir.Expr) -> ir.Expr:
            inside, sources = _sources(i, bounds, ks)
            number = tirx.const(0, "int64")
            for source, size in zip(sources, x.shape[2:]):
                number = number * size + source
            return place_of(inside, x[(*i[:2], *sources)], y[i], number, ks)

        return first_place(te.compute(y.shape, at, name="numbers"))

    return builder.te(compute, x, out, name="adaptive_places")


_Bound = Callable[[ir.Expr], ir.Expr]


def _bounds(x: te.Tensor, wanted: Sequence[Dim]) -> tuple[list[tuple[_Bound, _Bound]], list]:
    """((first, behind the last) element of the window of o, for every axis; loops as long as the longest window)."""
    bounds, ks = [], []
    for axis, (size, want) in enumerate(zip(x.shape[2:], wanted)):
        size, want = plain(size), prim(want)
        bounds.append(
            (
                lambda o, size=size, want=want: tirx.floordiv(o * size, want),
                lambda o, size=size, want=want: tirx.floordiv((o + 1) * size + want - 1, want),
            )
        )
        longest: Dim = tirx.floordiv(prim(size) + want - 1, want) + 1
        if isinstance(size, int) and isinstance(plain(want), int):
            count = int(want)
            longest = max(((i + 1) * size + count - 1) // count - i * size // count for i in range(count))
        ks.append(te.reduce_axis((0, longest), f"k{axis}"))
    return bounds, ks


def _sources(i: Sequence[ir.Expr], bounds: Sequence[tuple[_Bound, _Bound]], ks: Sequence) -> tuple[ir.Expr, list]:
    """(whether element `ks` belongs to the window of `i`, where it is)."""
    sources = [start(o) + k for o, k, (start, _) in zip(i[2:], ks, bounds)]
    inside = tirx.all(*(s < end(o) for o, s, (_, end) in zip(i[2:], sources, bounds)))
    return inside, sources


def _largest(value: ir.Expr, ks: Sequence) -> ir.Expr:
    """te.max that keeps a NaN, also of elements that are all -inf."""
    reducer = te.comm_reducer(maximum, least)
    return reducer(value, axis=ks)
