"""Reading and writing at indices that are data: outside of the operand reads are moved inside, writes are dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax
from jax import numpy as jnp
from jaxlib.mlir.dialects import stablehlo

from .._counter import row_of, with_row
from .._operation import Operation, Value, dtype_of, operation, traced
from .reductions import monoid


@operation("gather", "dynamic_gather")
def gather(o: Operation) -> Value:
    numbers = stablehlo.GatherDimensionNumbers(o.op.attributes["dimension_numbers"])
    x, indices = o.values[:2]
    axes = lax.GatherDimensionNumbers(
        tuple(numbers.offset_dims),
        tuple(numbers.collapsed_slice_dims),
        tuple(numbers.start_index_map),
        tuple(numbers.operand_batching_dims),
        tuple(_moved(numbers.start_indices_batching_dims, numbers.index_vector_dim)),
    )
    sizes = o.sizes(2) if o.name == "dynamic_gather" else tuple(o.numbers("slice_sizes"))
    return lax.gather(x, _vectors_last(indices, numbers.index_vector_dim), axes, sizes, mode="clip")


@operation("scatter")
def scatter(o: Operation) -> Value:
    if len(o.values) != 3:
        raise o.refuse(f"{len(o.values) // 2} operands at once")
    numbers = stablehlo.ScatterDimensionNumbers(o.op.attributes["scatter_dimension_numbers"])
    axes = lax.ScatterDimensionNumbers(
        tuple(numbers.update_window_dims),
        tuple(numbers.inserted_window_dims),
        tuple(numbers.scattered_dims_to_operand_dims),
        tuple(numbers.input_batching_dims),
        tuple(_moved(numbers.scatter_indices_batching_dims, numbers.index_vector_dim)),
    )
    x, indices, updates = o.values
    kind = monoid(o.op.regions[0])
    if kind not in _SCATTERS:
        raise o.refuse("an update that is none of add, multiply, minimum, maximum and overwriting")
    indices = _vectors_last(indices, numbers.index_vector_dim)
    return _SCATTERS[kind](x, indices, updates, axes, mode="drop")


_SCATTERS: dict[str | None, Callable[..., Any]] = {
    "second": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "minimum": lax.scatter_min,
    "maximum": lax.scatter_max,
}


def _vectors_last(indices: Value, axis: int) -> Value:
    """`indices` with the axis of the index vector last, as jax has it; of size 1 where there is none."""
    return indices[..., None] if axis == indices.ndim else jnp.moveaxis(indices, axis, -1)


def _moved(axes: list[int], vector: int) -> list[int]:
    """Axes of the indices once the axis `vector` stands last."""
    return [axis - (axis > vector) for axis in axes]


@operation("dynamic_slice")
def dynamic_slice(o: Operation) -> Value:
    sizes = o.numbers("slice_sizes")
    row = row_of(o.known[0], o.known[1:], sizes)
    return lax.dynamic_slice(o.x, [traced(v) for v in o.known[1:]], sizes) if row is None else row


@operation("dynamic_update_slice")
def dynamic_update_slice(o: Operation) -> Value:
    update = jnp.asarray(traced(o.known[1]), dtype_of(o.op.operands[1].type))
    _, row = o.program.rows.get(id(o.known[1]), (None, None))
    made = with_row(o.known[0], o.known[2:], update, row)
    return lax.dynamic_update_slice(o.x, update, [traced(v) for v in o.known[2:]]) if made is None else made
