"""Elements where a mask is true, read and written; how many there are is found when the model runs."""

from __future__ import annotations

import torch
from tvm import relax, te, tirx

from ....dimensions import is_one
from ...meaning.selection import nonzero_places
from .._call import Call
from .._registry import converter


@converter("nonzero.default")
def nonzero(c: Call) -> relax.Expr:
    return c.permute(nonzero_places(c, c.tensor("self"), c.found_size(0)), [1, 0])


@converter("masked_select.default")
def masked_select(c: Call) -> relax.Expr:
    shape = c.translator.dims.shape(torch.broadcast_shapes(c.meta("self").shape, c.meta("mask").shape))
    size = [c.sizes.product(shape)]
    x, mask = (c.reshape(c.broadcast(c.tensor(name), shape), size) for name in ("self", "mask"))
    places = nonzero_places(c, mask, c.found_size(0))
    return c.emit(relax.op.take(x, c.reshape(places, c.shape), 0, mode="clip"))


@converter("masked_scatter.default")
def masked_scatter(c: Call) -> relax.Expr:
    """Where the mask is true, the elements of `source`, one after another."""
    shape, source = c.shape, c.tensor("source", c.dtype)
    x, mask = (c.broadcast(c.tensor(name), shape) for name in ("self", "mask"))
    flat = c.reshape(source, [c.sizes.product(source.ty.shape.values)])

    def compute(x: te.Tensor, mask: te.Tensor, source: te.Tensor, order: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.PrimExpr:
            return _chosen(mask[i], source[_inside(order[i], source.shape[0])], x[i], source.shape[0])

        return te.compute(x.shape, at, name="masked_scatter")

    return c.te(compute, x, mask, flat, _order(c, mask), name="masked_scatter")


def places_of_mask(c: Call, mask: relax.Expr, count: tirx.PrimExpr) -> list[relax.Expr]:
    """int64 [count] for each axis of `mask`: where it is true."""
    places = nonzero_places(c, mask, count)

    def row(places: te.Tensor, axis: int) -> te.Tensor:
        return te.compute([places.shape[1]], lambda i: places[axis, i], name="places")

    return [c.te(row, places, axis, name="places") for axis in range(mask.ty.ndim)]


def put_where(c: Call, axis: int) -> relax.Expr:
    """x[:, .., mask] = values, or += those: `mask`, whose axes begin at `axis`, is the only index."""
    x, values, mask = c.tensor("self"), c.tensor("values", c.dtype), c["indices"][axis]
    behind, rank, add = axis + mask.ty.ndim, c.rank("self"), bool(c["accumulate"])
    shape = list(values.ty.shape.values)
    values = c.reshape(values, [*[1] * (rank - mask.ty.ndim + 1 - len(shape)), *shape])
    sizes = values.ty.shape.values
    if not add and c.sizes.is_equal(c.sizes.product(sizes), 1):
        mask = c.reshape(mask, [*mask.ty.shape.values, *[1] * (rank - behind)])
        return c.emit(relax.op.where(mask, c.reshape(values, []), x))
    several = not c.sizes.is_equal(sizes[axis], 1)
    order = [_order(c, mask)] if several else []

    def compute(x: te.Tensor, mask: te.Tensor, values: te.Tensor, *order: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.PrimExpr:
            here = i[axis:behind]
            number = _inside(order[0][here], values.shape[axis]) if order else tirx.const(0, "int64")
            places = [*i[:axis], number, *i[behind:]]
            taken = [0 if is_one(d) else p for d, p in zip(values.shape, places)]
            new = values[tuple(taken)]
            return _chosen(mask[here], x[i] + new if add else new, x[i], values.shape[axis])

        return te.compute(x.shape, at, name="index_put")

    return c.te(compute, x, mask, values, *order, name="index_put")


def _order(c: Call, mask: relax.Expr) -> relax.Expr:
    """int64, like `mask`: how many elements in front of each one are true."""
    shape = mask.ty.shape.values
    flat = c.reshape(c.cast(mask, "int64"), [c.sizes.product(shape)])
    return c.reshape(c.emit(relax.op.subtract(c.emit(relax.op.cumsum(flat, 0)), flat)), shape)


def _inside(number: tirx.PrimExpr, count: tirx.PrimExpr) -> tirx.PrimExpr:
    """`number` itself: torch wants as many values as are true. With fewer no foreign memory is read."""
    return tirx.min(number, count - 1)


def _chosen(
    condition: tirx.PrimExpr, value: tirx.PrimExpr, otherwise: tirx.PrimExpr, count: tirx.PrimExpr
) -> tirx.PrimExpr:
    """`value` where the condition holds; it is not read where there are none."""
    return tirx.if_then_else(tirx.all(condition, count > 0), value, otherwise)
