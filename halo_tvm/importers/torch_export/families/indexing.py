"""Reading and writing at indices that are data. Negative indices count from the end, as in torch."""

from __future__ import annotations

import torch
from tvm import relax, te, tirx

from ....dimensions import is_one
from ....relay_ops.operator import clamped
from ....relay_ops.parts.in_order import from_start
from ...meaning.builder import Refused
from ...meaning.reduction import neutral
from ...meaning.sizes import prim
from ...meaning.writing import rows_of, write_rows
from .._call import Call, constant
from .._registry import converter
from .masks import places_of_mask, put_where
from .shapes import wrapped


def _wrap(index: tirx.PrimExpr, size: tirx.PrimExpr) -> tirx.PrimExpr:
    """`index` from 0, inside the axis: no kernel reads or writes foreign memory."""
    return clamped(from_start(index, size), size)


def _at(indices: list[te.Tensor], i: tuple, rank: int) -> list[tirx.PrimExpr]:
    """Each index tensor at the joint position `i`, broadcast from the right."""

    def one(t: te.Tensor) -> tirx.PrimExpr:
        own = i[rank - len(t.shape) :]
        return t[tuple(0 if is_one(d) else j for d, j in zip(t.shape, own))]

    return [one(t) for t in indices]


def _positions(c: Call) -> list[int]:
    """The axes that have an index."""
    metas = c.meta("indices")
    if any(m is not None and m.dtype == torch.bool for m in metas):
        raise Refused("a boolean mask beside other indices")
    return [axis for axis, m in enumerate(metas) if m is not None]


@converter("index.Tensor", "_unsafe_index.Tensor")
def index(c: Call) -> relax.Expr:
    """A mask is an index for each of its axes: the places where it is true."""
    x, found, masks = c.tensor("self"), {}, {}
    axis = rank = 0
    for given, meta in zip(c["indices"], c.meta("indices")):
        is_mask = meta is not None and meta.dtype == torch.bool
        if is_mask:
            masks[axis] = given
        elif meta is not None:
            found[axis] = c.as_tensor(given, None)
        rank = max(rank, 1 if is_mask else 0 if meta is None else meta.dim())  # of the joint index
        axis += meta.dim() if is_mask else 1
    axes = sorted([*found, *(first + j for first, mask in masks.items() for j in range(mask.ty.ndim))])
    together = axes == list(range(axes[0], axes[-1] + 1))
    front = axes[0] if together else 0  # where the joint index goes: to its place, or to the front
    for first, mask in masks.items():
        found |= enumerate(places_of_mask(c, mask, c.found_size(front + rank - 1)), first)
    indices, shape = [found[axis] for axis in axes], c.shape

    def compute(x: te.Tensor, *indices: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.PrimExpr:
            chosen = dict(zip(axes, _at(list(indices), i[front : front + rank], rank)))
            rest = iter((*i[:front], *i[front + rank :]))
            return x[tuple(_wrap(chosen[a], d) if a in chosen else next(rest) for a, d in enumerate(x.shape))]

        return te.compute(shape, at, name="index")

    return c.te(compute, x, *indices, name="index")


@converter("gather.default")
def gather(c: Call) -> relax.Expr:
    x, at_index, axis = c.tensor("self"), c.tensor("index"), c.axis("dim")

    def compute(x: te.Tensor, at_index: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.PrimExpr:
            return x[tuple(_wrap(at_index[i], d) if a == axis else i[a] for a, d in enumerate(x.shape))]

        return te.compute(at_index.shape, at, name="gather")

    return c.te(compute, x, at_index, name="gather")


@converter("index_select.default")
def index_select(c: Call) -> relax.Expr:
    x, chosen, axis = c.tensor("self"), c.tensor("index"), c.axis("dim")

    def compute(x: te.Tensor, chosen: te.Tensor) -> te.Tensor:
        shape = [chosen.shape[0] if a == axis else d for a, d in enumerate(x.shape)]

        def at(*i: tirx.Var) -> tirx.PrimExpr:
            return x[tuple(_wrap(chosen[i[a]], d) if a == axis else i[a] for a, d in enumerate(x.shape))]

        return te.compute(shape, at, name="index_select")

    return c.te(compute, x, chosen, name="index_select")


@converter("index_put.default", "_unsafe_index_put.default")
def index_put(c: Call) -> relax.Expr:
    """The last of equal indices wins, or all are added when `accumulate`."""
    metas = c.meta("indices")
    if [m.dtype for m in metas if m is not None] == [torch.bool]:
        return put_where(c, next(axis for axis, m in enumerate(metas) if m is not None))
    x, axes, sizes = c.tensor("self"), _positions(c), c.shape_of("self")
    shape = c.translator.dims.shape(torch.broadcast_shapes(*(metas[axis].shape for axis in axes)))
    rest = [a for a in range(len(sizes)) if a not in axes]
    together = axes == list(range(axes[0], axes[-1] + 1))
    front = axes[0] if together else 0  # where torch expects the joint index among the axes of the values
    kept = [sizes[a] for a in rest]
    values = c.broadcast(c.tensor("values", c.dtype), [*kept[:front], *shape, *kept[front:]])
    joint = range(front, front + len(shape))
    values = c.permute(values, [*joint, *(a for a in range(len(kept) + len(shape)) if a not in joint)])
    order = [*axes, *rest]
    indices = (c.broadcast(c.as_tensor(c["indices"][axis], "int64"), shape) for axis in axes)
    joined = [c.reshape(index, [1, *shape]) for index in indices]
    at = joined[0] if len(joined) == 1 else c.emit(relax.op.concat(joined, 0))
    out = write_rows(c, c.permute(x, order), at, values, "add" if c["accumulate"] else "update", first=True)
    return c.permute(out, [order.index(a) for a in range(len(order))])


def _wrapped_index(c: Call, index: relax.Expr, size: tirx.PrimExpr) -> relax.Expr:
    def compute(index: te.Tensor, size: tirx.PrimExpr) -> te.Tensor:
        return te.compute(index.shape, lambda *i: _wrap(index[i], size), name="wrap")

    return c.te(compute, index, size, name="wrap")


_REDUCTIONS = {
    None: "update",
    "add": "add",
    "sum": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
    "mean": "add",
}


@converter("scatter.src", "scatter.value", "scatter.reduce", "scatter_add.default", "scatter_reduce.two")
def scatter(c: Call) -> relax.Expr:
    x, axis = c.tensor("self"), c.axis("dim")
    how = "add" if "scatter_add" in str(c.node.target) else c.nodes.get("reduce")
    alone = c.nodes.get("include_self", True) is False  # what is written counts, not what was there
    if how not in _REDUCTIONS or alone and c.dtype == "bool":
        raise Refused(f"reduce={how!r}")
    given, length = c.tensor("index", "int64"), c.shape_of("self")[axis]
    rows = rows_of(c, given, x, axis)
    at_index = _wrapped_index(c, given if rows is None else rows, length)
    source = c.tensor("src" if "src" in c.nodes else "value", c.dtype)
    where = given.ty.shape.values
    if source.ty.ndim == 0:
        source = c.broadcast(source, where)
    elif not c.has_shape(source, where):  # what lies beyond the index is not read
        source = c.te(lambda t: te.compute(where, lambda *i: t[i], name="part"), source, name="part")
    size = x.ty.shape.values

    def written(x: relax.Expr, source: relax.Expr, mode: str) -> relax.Expr:
        if rows is not None:
            return c.emit(relax.op.scatter_nd(x, at_index, source, mode))
        return c.emit(relax.op.scatter_elements(x, at_index, source, axis, mode))

    def filled(shape: object, value: float) -> relax.Expr:
        return c.broadcast(constant(value, c.dtype), shape)

    if alone:
        x = written(x, filled(where, neutral(_REDUCTIONS[how], c.dtype)), "update")
    out = written(x, source, _REDUCTIONS[how])
    if how != "mean":
        return out
    counts = written(filled(size, 0 if alone else 1), filled(where, 1), "add")
    counts = c.emit(relax.op.maximum(counts, constant(1, c.dtype)))
    return c.emit((relax.op.divide if "float" in c.dtype else relax.op.floor_divide)(out, counts))


@converter("slice_scatter.default", "select_scatter.default")
def slice_scatter(c: Call) -> relax.Expr:
    """`self` with a slice of an axis replaced."""
    axis, size = c.axis("dim"), c.shape_of("self")[c.axis("dim")]
    one = "select" in str(c.node.target)
    step = 1 if one else int(c["step"])
    start = wrapped(c, c["index"] if one else 0 if c["start"] is None else c["start"], size)
    shape = c.shape_of("self")
    source = c.tensor("src")
    if one:
        shape[axis] = 1
        source = c.reshape(source, shape)

    def compute(x: te.Tensor, source: te.Tensor, start: tirx.PrimExpr) -> te.Tensor:
        count = source.shape[axis]

        def at(*i: tirx.Var) -> tirx.PrimExpr:
            offset = i[axis] - start
            inside = [offset >= 0, tirx.floordiv(offset, step) < count]
            inside += [tirx.floormod(offset, step) == 0] if step > 1 else []
            place = tuple(tirx.floordiv(offset, step) if a == axis else j for a, j in enumerate(i))
            return tirx.if_then_else(tirx.all(*inside), source[place], x[i])

        return te.compute(x.shape, at, name="slice_scatter")

    return c.te(compute, c.tensor("self"), source, prim(start), name="slice_scatter")


@converter("copy.default")
def copy(c: Call) -> relax.Expr:
    return c.broadcast(c.tensor("src", c.dtype), c.shape)
