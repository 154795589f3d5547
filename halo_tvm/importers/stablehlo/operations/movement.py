"""Shapes, axes and parts; sizes are attributes or operands."""

from __future__ import annotations

import numpy as np
from jax import lax

from .._counter import counters, row_of
from .._operation import Operation, Value, operation, traced


@operation("reshape", "dynamic_reshape")
def reshape(o: Operation) -> Value:
    shape = _shape(o, o.name == "dynamic_reshape")
    _, row = o.program.rows.get(id(o.known[0]), (None, None))
    return row if row is not None and tuple(row.shape) == shape else lax.reshape(o.x, shape)


@operation("broadcast_in_dim", "dynamic_broadcast_in_dim")
def broadcast(o: Operation) -> Value:
    shape, axes = _shape(o, o.name != "broadcast_in_dim"), o.numbers("broadcast_dimensions")
    x = o.x
    made = lax.broadcast_in_dim(x, shape, axes)
    if axes and axes == list(range(1, len(shape))):
        o.program.rows[id(made)] = made, x
    return made


@operation("iota", "dynamic_iota")
def iota(o: Operation) -> Value:
    shape = o.sizes(0) if o.name == "dynamic_iota" else _shape(o, False)
    return lax.broadcasted_iota(o.dtype, shape, o.number("iota_dimension"))


def _shape(o: Operation, given: bool) -> tuple[int, ...]:
    """Of the result: the second operand where it is given, else what the file says."""
    return o.sizes(1) if given else tuple(o.op.results[0].type.shape)


for _name, _carry_out in {
    "transpose": lambda o: lax.transpose(o.x, o.numbers("permutation")),
    "concatenate": lambda o: lax.concatenate(o.values, o.number("dimension")),
    "reverse": lambda o: lax.rev(o.x, o.numbers("dimensions")),
    "slice": lambda o: lax.slice(o.x, *map(o.numbers, ("start_indices", "limit_indices", "strides"))),
}.items():
    operation(_name)(_carry_out)


@operation("real_dynamic_slice")
def slice_of_sizes(o: Operation) -> Value:
    start, end = o.known[1:3]
    if counters(start) and isinstance(end, np.ndarray) and set(o.sizes(3)) == {1}:
        sizes = [b - a for a, b in zip(start, end, strict=True)]
        row = row_of(o.known[0], list(start), sizes)
        return lax.dynamic_slice(o.x, list(traced(start)), sizes) if row is None else row
    size = _added(o, start=1, end=2)
    if size is not None and set(o.sizes(3)) == {1}:
        return lax.dynamic_slice(o.x, list(traced(o.known[1])), size)
    return lax.slice(o.x, o.sizes(1), o.sizes(2), o.sizes(3))


def _added(o: Operation, start: int, end: int) -> tuple[int, ...] | None:
    """The known sizes that one operand has been made of another by adding them; None where both are known."""
    step = o.op.operands[end].owner
    if isinstance(o.known[start], np.ndarray) or getattr(step, "name", "") != "stablehlo.add":
        return None
    first, second = step.operands
    size = o.held[second]
    return tuple(size.tolist()) if first == o.op.operands[start] and isinstance(size, np.ndarray) else None


@operation("pad", "dynamic_pad")
def pad(o: Operation) -> Value:
    x, value = o.values[:2]
    if o.name == "dynamic_pad":
        low, high, inner = (list(o.sizes(place)) for place in (2, 3, 4))
    else:
        low, high, inner = (o.numbers(name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return lax.pad(x, value, list(zip(low, high, inner, strict=True)))


@operation("get_dimension_size")
def dimension_size(o: Operation) -> Value:
    """A size as it is, so that shapes can be made of it."""
    size = o.known[0].shape[o.number("dimension")]
    return np.asarray(size, o.dtype if isinstance(size, int) else object)
