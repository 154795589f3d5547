"""Elements written at indices that are data: replaced, or joined with what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ....relay_ops.parts.in_order import COMBINED, element_count, flat_place, places_of, rows_written
from ...meaning.pointwise import Scalar
from ...meaning.sizes import prim
from ...meaning.writing import write
from .._primitive import Primitive
from .._registry import converter
from .._values import Value
from .indexing import inside

_JOINED: dict[str, Callable[[Scalar, Scalar], Scalar]] = {
    "scatter": COMBINED["update"],
    "scatter_add": COMBINED["add"],
    "scatter_sub": lambda old, new: old - new,
    "scatter_mul": COMBINED["mul"],
    "scatter_max": COMBINED["max"],
    "scatter_min": COMBINED["min"],
}


@converter(*(name.replace("_", "-") for name in _JOINED))
def scatter(c: Primitive) -> Value:
    """Windows of updates, each at an index; those that do not fit are left out, or moved inside by mode "clip"."""
    numbers, join = c.params["dimension_numbers"], _JOINED[c.op]
    c.refuse_unless(c.op == "scatter" or c.dtype != "bool", f"{c.op} of booleans")
    window = list(numbers.update_window_dims)
    joint = [a for a in range(c.rank(2)) if a not in window]  # axes of the updates that name an index
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [a for a in range(c.rank(0)) if a not in gone]
    moved = "CLIP" in str(c.params["mode"]).upper()
    if not moved and _of_rows(c, len(joint)):
        return c.te(lambda x, at, rows: rows_written(x, at, rows, join, from_end=False), *(c.x(i) for i in range(3)))

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> ir.Expr:
        data, indices, updates, out = (T.buffer_proxy(b) for b in (*ins, *outs))
        shape, given = list(ins[0].shape), list(ins[2].shape)
        extents = [prim(1)] * len(shape)
        for axis, source in zip(kept, window):
            extents[axis] = given[source]
        with IRBuilder() as builder, T.seq_scope():
            with T.serial(0, element_count(shape)) as i:
                out[i] = data[i]
            with T.serial(0, element_count(given)) as i:
                at = places_of(i, given)
                where = [at[a] for a in joint]
                place: list[Any] = [tirx.const(0, "int64")] * len(shape)
                tests = []
                for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
                    index = indices[flat_place([*where, prim(k)], list(ins[1].shape))].astype("int64")
                    last = shape[axis] - extents[axis]
                    tests += [] if moved else [index >= 0, index <= last]
                    place[axis] = inside(index, last)
                for axis, source in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims):
                    place[axis] = where[source]
                for axis, source in zip(kept, window):
                    place[axis] = place[axis] + at[source]
                target = flat_place(place, shape)
                with T.If(tirx.all(*tests) if tests else tirx.const(True, "bool")), T.Then():
                    out[target] = join(out[target], updates[i])
        return builder.get()

    return write(c, nest, c.x(0), c.x(1), c.x(2))


def _of_rows(c: Primitive, lead: int) -> bool:
    """Whether whole rows are written: updates [*lead, *rest of the operand's shape], indices of its first axes."""
    numbers, shape, given = c.params["dimension_numbers"], c.shape_of(0), c.shape_of(2)
    first = tuple(numbers.scatter_dims_to_operand_dims)
    depth = len(first)
    return (
        first == tuple(numbers.inserted_window_dims) == tuple(range(depth))
        and not numbers.operand_batching_dims
        and tuple(numbers.update_window_dims) == tuple(range(lead, len(given)))
        and all(map(c.sizes.is_equal, given[lead:], shape[depth:]))
    )
