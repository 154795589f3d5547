"""Reading at indices that are data: gather and dynamic slices, and slices written over."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx

from ....relay_ops import OPERATORS
from ....relay_ops.operator import chosen, op_name
from ...meaning.builder import expr_dtype, expr_shape
from ...meaning.pointwise import Scalar, const
from ...meaning.sizes import prim
from .._primitive import Primitive
from .._registry import converter
from .._values import Spread, Value
from .movement import reshaped


def inside(index: Scalar, high: ir.Expr) -> Scalar:
    """`index` as int64 from 0 to `high`: no kernel reads or writes foreign memory."""
    index = index.astype("int64")
    return tirx.max(tirx.min(index, high), tirx.const(0, "int64"))


@converter("gather")
def gather(c: Primitive) -> Value:
    """Slices of an operand that begin at indices; outside of it they are moved inside, or filled."""
    table = _rows_of_table(c)
    if table is not None:
        return table
    numbers = c.params["dimension_numbers"]
    sizes = [c.walker.dims.dim(d) for d in c.params["slice_sizes"]]
    operand, shape = c.shape_of(0), c.shape
    offsets = list(numbers.offset_dims)
    joint = [a for a in range(len(shape)) if a not in offsets]  # axes of the result that name an index
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [a for a in range(len(operand)) if a not in gone]
    filled = "FILL" in str(c.params["mode"]).upper()
    fill = _fill_value(c.params["fill_value"], c.dtype)

    def compute(x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i: Scalar) -> Scalar:
            where = [i[a] for a in joint]
            at: list[Any] = [tirx.const(0, "int64")] * len(operand)
            within = []
            for place, axis in enumerate(numbers.start_index_map):
                index = indices[(*where, place)].astype("int64")
                last = x.shape[axis] - prim(sizes[axis])
                within += [index >= 0, index <= last]
                at[axis] = inside(index, last)
            for axis, source in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims):
                at[axis] = where[source]
            for axis, offset in zip(kept, offsets):
                at[axis] = at[axis] + i[offset]
            value = x[tuple(at)]
            return chosen(tirx.all(*within), value, const(fill, str(x.dtype))) if filled and within else value

        return te.compute([prim(d) for d in shape], element, name="gather")

    return c.te(compute, c.x(0), c.x(1), name="gather")


def _fill_value(given: Any, dtype: str) -> float | int | bool:
    """What stands outside of the operand: NaN, the lowest number with a sign, the highest one without."""
    if given is not None:
        return np.asarray(given).item()  # type: ignore[no-any-return]
    if "float" in dtype:
        return float("nan")
    if dtype == "bool":
        return True
    info = np.iinfo(dtype)
    return int(info.max if dtype.startswith("uint") else info.min)


def _rows_of_table(c: Primitive) -> relax.Expr | None:
    """halo.embedding of whole rows of a weight, at indices that are inside of it or that the executor checks.

    Negative numbers count from the end in jax: as ids of an input the executor refuses them.
    """
    numbers, table, rank = c.params["dimension_numbers"], c.constant(0), c.rank(1) - 1
    if table is None or not table.name or len(table.shape) != 2 or table.dtype not in ("float32", "float16"):
        return None
    rows, width = table.shape
    whole = (
        tuple(numbers.collapsed_slice_dims) in ((), (0,))
        and tuple(numbers.offset_dims) == tuple(range(rank, len(c.shape)))
        and not numbers.operand_batching_dims
        and tuple(c.params["slice_sizes"]) == (1, width)
    )
    value = _numbers_of_rows(c)
    ids = value.small if isinstance(value, Spread) else value
    if not whole or not isinstance(ids, relax.Expr):
        return None
    shape = c.shape_of(1)[:-1]
    ids = _unwrapped(c, ids, rows)
    origin = _origin(c, ids)
    name = c.walker.inputs.get(origin) if origin is not None else None
    if name is not None:
        c.walker.rows[name] = min(rows, c.walker.rows.get(name, rows))
    elif "FILL" in str(c.params["mode"]).upper() and not _is_range_within(c, origin, rows):
        return None
    if isinstance(value, Spread):  # positions repeat along the batch: so do their rows
        own = expr_shape(ids)[:-1]
        found = c.emit(OPERATORS["embedding"].call(c.reshape(ids, own), c.x(0), layout="nk", n=rows))
        return c.walker.expr_of(c.spread(c.reshape(found, (*own, *c.shape[rank:])), c.shape))
    found = c.emit(OPERATORS["embedding"].call(c.reshape(ids, shape), c.x(0), layout="nk", n=rows))
    return c.reshape(found, c.shape)


def _numbers_of_rows(c: Primitive) -> Value | None:
    """The indices of a matrix [.., 1] where they begin at rows, or at rows and at column 0."""
    begins = tuple(c.params["dimension_numbers"].start_index_map)
    if begins == (0,):
        return c.values[1]
    bound = c.bound_to(c.values[1])
    if begins != (0, 1) or op_name(bound) != "relax.concat" or len(bound.args[0].fields) != 2:
        return None
    rows, column = bound.args[0].fields
    while op_name(c.bound_to(column)) in ("relax.reshape", "relax.broadcast_to"):
        column = c.bound_to(column).args[0]
    return rows if _holds(column, 0) and c.sizes.is_equal(expr_shape(rows)[-1], 1) else None


def _unwrapped(c: Primitive, ids: relax.Expr, rows: int) -> relax.Expr:
    """x of where(x < 0, x + rows, x), in the shape of `ids`, where x is an input or a range from 0."""
    inner, shape = _behind_reshapes(c, ids), expr_shape(ids)
    bound = c.bound_to(inner)
    if op_name(bound) != "relax.where":
        return ids
    condition, moved, plain = (c.bound_to(a) for a in bound.args)
    wrapped = op_name(condition) == "relax.less" and op_name(moved) == "relax.add" and _holds(condition.args[1], 0)
    x = bound.args[2]
    if not wrapped or not condition.args[0].same_as(x) or not moved.args[0].same_as(x):
        return ids
    origin = _origin(c, x)
    if not _holds(moved.args[1], rows) or origin not in c.walker.inputs and not _is_range_within(c, origin, rows):
        return ids
    return c.reshape(x, shape)


def _behind_reshapes(c: Primitive, x: relax.Expr) -> relax.Expr:
    while op_name(c.bound_to(x)) == "relax.reshape":
        x = c.bound_to(x).args[0]
    return x


def _origin(c: Primitive, x: relax.Expr) -> relax.Expr | None:
    """What integers are before they were cast and reshaped."""
    while op_name(c.bound_to(x)) in ("relax.reshape", "relax.astype", "relax.broadcast_to"):
        bound = c.bound_to(x)
        if "int" not in expr_dtype(bound.args[0]):
            return x
        x = bound.args[0]
    return x


def _is_range_within(c: Primitive, x: Any, rows: int) -> bool:
    """Whether `x` is 0, 1, ... up to less than `rows`."""
    bound: Any = None if x is None else c.bound_to(x)
    if op_name(bound) != "relax.arange" or not c.sizes.is_equal(bound.args[0], 0):
        return False
    return bool(c.sizes.decided(bound.args[1] <= rows))


def _holds(x: relax.Expr, number: int) -> bool:
    return isinstance(x, ir.GenericConst) and x.value.numpy().size == 1 and int(x.value.numpy().item()) == number


@converter("dynamic_slice")
def dynamic_slice(c: Primitive) -> Value:
    """A part of the size that is given, moved inside of the operand."""
    shape, rank = c.shape, c.rank()
    known = [c.number(1 + a) for a in range(rank)]
    own = c.shape_of(0)
    if all(isinstance(k, int) for k in known) and all(isinstance(d, int) for d in (*own, *shape)):
        begin = [min(max(int(k or 0), 0), int(d) - int(s)) for k, d, s in zip(known, own, shape)]
        ends = [prim(b) + s for b, s in zip(begin, shape)]
        axes = [a for a in range(rank) if own[a] != shape[a]]
        if not axes:
            return c.values[0]
        return c.emit(
            relax.op.strided_slice(
                c.x(), axes, [prim(begin[a]) for a in axes], [prim(c.sizes.simplify(ends[a])) for a in axes]
            )
        )

    def compute(x: te.Tensor, *starts: te.Tensor) -> te.Tensor:
        def element(*i: Scalar) -> Scalar:
            at = [inside(s[()], d - prim(n)) + j for s, d, n, j in zip(starts, x.shape, shape, i)]
            return x[tuple(at)]

        return te.compute([prim(d) for d in shape], element, name="dynamic_slice")

    return c.te(compute, c.x(0), *_starts(c, 1), name="dynamic_slice")


def _starts(c: Primitive, first: int) -> list[relax.Expr]:
    out = []
    for index in range(first, first + c.rank()):
        start = reshaped(c, c.values[index], [])
        out.append(c.walker.expr_of(start))
    return out


@converter("dynamic_update_slice")
def dynamic_update_slice(c: Primitive) -> Value:
    """The operand with a part of it replaced; the part is moved inside."""

    def compute(x: te.Tensor, update: te.Tensor, *starts: te.Tensor) -> te.Tensor:
        def element(*i: Scalar) -> Scalar:
            tests, at = [], []
            for j, start, size, count in zip(i, starts, x.shape, update.shape):
                place = j - inside(start[()], size - count)
                tests += [place >= 0, place < count]
                at.append(place)
            return tirx.if_then_else(tirx.all(*tests), update[tuple(at)], x[i]) if at else update[()]

        return te.compute(x.shape, element, name="dynamic_update_slice")

    return c.te(compute, c.x(0), c.x(1), *_starts(c, 2), name="dynamic_update_slice")
