"""Elements written one after another, at places that are data: the loops of scatter operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, te, tirx

from .builder import Builder
from .sizes import Dim, prim

Nest = Callable[[Sequence[Any], Sequence[Any]], ir.Expr]


def written(builder: Builder, nest: Nest, *args: relax.Expr) -> relax.Expr:
    """What `nest(buffers of args, buffers of results)` writes into one tensor like the first of `args`."""

    def compute(*args: te.Tensor) -> te.Tensor:
        data, names = args[0], ("data", "indices", "updates")
        buffers = [tirx.decl_buffer(a.shape, a.dtype, name=n) for a, n in zip(args, names)]
        out = tirx.decl_buffer(data.shape, data.dtype, name="out")
        return te.extern(
            [data.shape], list(args), nest, name="scatter", dtype=[data.dtype], in_buffers=buffers, out_buffers=[out]
        )

    return builder.te(compute, *args)


def element_count(shape: Sequence[Dim]) -> ir.Expr:
    """The number of elements, left as it is written."""
    total = prim(1)
    for size in shape:
        total = total * prim(size)
    return total


def places_of(flat: ir.Expr, shape: Sequence[Dim]) -> list[ir.Expr]:
    """Where the element number `flat` of a tensor of `shape` is along each axis."""
    places: list[ir.Expr] = []
    for size in reversed(list(shape)):
        places.insert(0, tirx.floormod(flat, size))
        flat = tirx.floordiv(flat, size)
    return places


def flat_place(places: Sequence[ir.Expr], shape: Sequence[Dim]) -> ir.Expr:
    """The number of the element at `places` of a tensor of `shape`."""
    out = prim(0)
    for place, size in zip(places, shape):
        out = out * size + place
    return out
