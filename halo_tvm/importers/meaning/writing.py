"""Elements and rows written one after another, at places that are data: scatter operators."""

from __future__ import annotations

from tvm import relax, tirx

from ...dimensions import is_one
from ...relay_ops.operator import op_name
from ...relay_ops.parts.in_order import COMBINED, Nest, elements_written, rows_written, written
from .builder import Builder
from .sizes import prim


def write(builder: Builder, nest: Nest, *args: relax.Expr) -> relax.Expr:
    """What `nest(buffers of args, buffers of results)` writes into one tensor like the first of `args`."""
    return builder.te(lambda *tensors: written(nest, *tensors), *args)


def write_rows(
    builder: Builder, data: relax.Expr, indices: relax.Expr, updates: relax.Expr, how: str, *, first: bool = False
) -> relax.Expr:
    """See `rows_written`; `how` is a key of `COMBINED`."""
    return builder.te(lambda d, i, u: rows_written(d, i, u, COMBINED[how], first), data, indices, updates)


def write_elements(
    builder: Builder, data: relax.Expr, indices: relax.Expr, updates: relax.Expr, axis: int, how: str
) -> relax.Expr:
    """See `elements_written`; `how` is a key of `COMBINED`."""
    rows = rows_of(builder, indices, data, axis)
    if rows is not None:
        return write_rows(builder, data, rows, updates, how)
    return builder.te(lambda d, i, u: elements_written(d, i, u, axis, COMBINED[how]), data, indices, updates)


def rows_of(builder: Builder, indices: relax.Expr, data: relax.Expr, axis: int) -> relax.Expr | None:
    """[rows, 1], where `indices` are that for whole rows of `data`, as graph nets spell it; else None."""
    call = builder.bound_to(indices)
    if axis or op_name(call) != "relax.broadcast_to":
        return None
    source = call.args[0]
    sizes = [*getattr(getattr(source.ty, "shape", None), "values", ())]
    rest = zip(indices.ty.shape.values[1:], data.ty.shape.values[1:])
    if len(sizes) != data.ty.ndim or len(sizes) < 2 or not all(map(is_one, sizes[1:])):
        return None
    if not all(isinstance(d, tirx.IntImm) and isinstance(n, tirx.IntImm) and int(d) == int(n) for d, n in rest):
        return None
    return builder.emit(relax.op.reshape(source, [sizes[0], prim(1)]))
