"""Where values belong in sorted sequences: how many of their elements lie before each."""

from __future__ import annotations

from tvm import ir, relax, te, tirx

from .builder import Builder, expr_shape
from .pointwise import Scalar

_COUNTED = 128  # elements that are compared one and all, as vectors, in less time than it takes to halve them


def places_among(b: Builder, edges: relax.Expr, values: relax.Expr, *, right: bool) -> relax.Expr:
    """int64, like `values`: how many of `edges` are less, or with `right` not more; a NaN lies behind all.

    Shapes: edges [n] of values of any shape, or [*rows, n] of values [*rows, m]; one type, float32, float64 or int64.
    """
    *_, n = expr_shape(edges)
    if not isinstance(n, int) or n <= _COUNTED:
        return b.te(lambda e, v: _counted(e, v, right), edges, values, name="searchsorted")
    place: relax.Expr | None = None
    width = 1 << (n.bit_length() - 1)
    while width:
        given = [edges, values] if place is None else [edges, values, place]
        place = b.te(lambda e, v, *at, w=width: _halved(e, v, at, w, right), *given, name="searchsorted")
        width //= 2
    assert place is not None
    return b.cast(place, "int64")


def _counted(edges: te.Tensor, values: te.Tensor, right: bool) -> te.Tensor:
    k = te.reduce_axis((0, edges.shape[-1]), "k")

    def count(*index: ir.Expr) -> ir.Expr:
        return te.sum(_before(edges, values, index, k, right).astype("int64"), axis=[k])

    return te.compute(values.shape, count, name="searchsorted")


def _halved(edges: te.Tensor, values: te.Tensor, at: tuple[te.Tensor, ...], width: int, right: bool) -> te.Tensor:
    """Places that are right up to `width`, from those up to twice that."""
    n = edges.shape[-1]

    def step(*index: ir.Expr) -> ir.Expr:
        here = at[0](*index) if at else tirx.const(0, "int32")
        there = here + width
        probe = tirx.min(there, n.astype("int32")) - 1
        inside = tirx.all(there <= n.astype("int32"), _before(edges, values, index, probe, right))
        return tirx.Select(inside, there, here)

    return te.compute(values.shape, step, name="searchsorted")


def _before(edges: te.Tensor, values: te.Tensor, index: tuple[ir.Expr, ...], place: ir.Expr, right: bool) -> Scalar:
    """Whether the edge number `place` lies before the value at `index`."""
    rank = len(edges.shape)
    edge = edges[(*index[: rank - 1], place)] if rank > 1 else edges[place]
    value = values[index] if index else values()
    before = edge <= value if right else edge < value
    # A negated comparison would be simplified to the other one, which a NaN answers alike.
    return before if str(edges.dtype) == "int64" else tirx.Or(before, tirx.isnan(value))
