"""Elements by index: Gather, GatherElements, GatherND, OneHot, ReverseSequence.

ONNX counts negative indices from the end. Known indices are checked and made positive here; others get a select,
but for token ids, whose range the executor checks. An index outside the tensor is clamped: no kernel reads
foreign memory.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax, te, tirx

from ...relay_ops import OPERATORS
from ...relay_ops.operator import clamped, op_name
from ...relay_ops.parts.in_order import from_start
from ..meaning.broadcast import at_least, same_sizes
from ..meaning.builder import expr_dtype, expr_shape
from ..meaning.constant import Constant
from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter
from ._values import known
from .slicing import sliced

_VIEWS = frozenset(
    f"relax.{name}"
    for name in ("astype", "reshape", "broadcast_to", "strided_slice", "permute_dims", "expand_dims", "squeeze")
)


def position(index: object, size: object) -> object:
    """`index` as int64 within 0..size-1; a negative one counts from the end."""
    return clamped(from_start(index, prim(size)), prim(size))


@converter("Gather")
def gather(node: Node) -> relax.Expr:
    shape = node.shape(0)
    axis = node.axis(node.attr("axis", 0), len(shape))
    size = shape[axis]
    node.refuse_unless(not (isinstance(size, int) and size == 0), "expected an axis with elements")
    if isinstance(node.inputs[1], Constant):
        return _gather_known(node, axis, size)
    if _is_table(node) and axis == 0:
        return OPERATORS["embedding"].call(inside(node, node.x(1), size), node.x(0), layout="nk", n=int(size))
    return relax.op.take(node.x(0), inside(node, node.x(1), size), axis, mode="clip")


def inside(node: Node, indices: relax.Expr, size: Dim) -> relax.Expr:
    """`indices` of an axis of that size, counted from its beginning; negative ones count from its end."""
    return indices if _is_natural(node, indices) else node.te(_counted_from_start, indices, [size], name="onnx_index")


def _counted_from_start(indices: te.Tensor, size: list) -> te.Tensor:
    return te.compute(indices.shape, lambda *i: _natural(indices(*i), size[0]), name="index")


def _natural(index: object, size: object) -> object:
    if index.ty.dtype.startswith("uint"):
        return index
    size = tirx.const(size, index.ty.dtype) if isinstance(size, int) else prim(size).astype(index.ty.dtype)
    return tirx.Select(index < 0, index + size, index)


def _gather_known(node: Node, axis: int, size: Dim) -> relax.Expr:
    """By known indices: a slice where they follow each other."""
    indices = node.constant(1)
    x, flat = node.x(0), indices.reshape(-1).astype(np.int64)
    if isinstance(size, int):
        bad = flat[(flat < -size) | (flat >= size)]
        node.refuse_unless(bad.size == 0, f"expected indices from {-size} to {size - 1}, found {bad[:1].tolist()}")
        flat = np.where(flat < 0, flat + size, flat)
    rest = expr_shape(x)
    shape = [*rest[:axis], *indices.shape, *rest[axis + 1 :]]
    if flat.size == 1 and not isinstance(size, int):
        first = int(flat[0])
        end = first + 1 if first != -1 else 1 << 62
        part = sliced(node, x, [axis], [first], [end], [1])
        if not node.sizes.is_equal(expr_shape(part)[axis] if isinstance(part, relax.Var) else 1, 1):
            # whether the axis is that long is known at run time only
            part = node.declared(part, [*rest[:axis], 1, *rest[axis + 1 :]])
        return relax.op.reshape(node.bind(part), shape)
    if flat.size and isinstance(size, int) and np.all(np.diff(flat) == 1):
        part = sliced(node, x, [axis], [int(flat[0])], [int(flat[-1]) + 1], [1])
        return relax.op.reshape(node.bind(part), shape) if indices.ndim != 1 else part
    if isinstance(size, int) or (flat >= 0).all():
        return relax.op.take(x, relax.const(flat.reshape(indices.shape), "int64"), axis, mode="clip")
    index = relax.const(flat.reshape(indices.shape), "int64")
    return relax.op.take(x, node.te(_counted_from_start, index, [size], name="onnx_index"), axis, mode="clip")


def _is_table(node: Node) -> bool:
    """A weight of rank 2 that is a parameter of the function."""
    value = node.inputs[0]
    return (
        isinstance(value, Constant)
        and len(value.shape) == 2
        and value.dtype in ("float32", "float16")
        and isinstance(node.x(0), relax.Var)
        and node.dtype(1) in ("int64", "int32")
    )


def _is_natural(node: Node, indices: relax.Expr) -> bool:
    """Whether the indices cannot be negative: sizes counted up, sums and products of such, or an input whose range
    the executor checks."""
    if not isinstance(indices, relax.Var):
        return isinstance(indices, relax.Expr) and _is_positive_constant(indices)
    if any(indices.same_as(v) for v in node.graph.checked_indices):
        return True
    value = node.bound_to(indices)
    name = op_name(value)
    if name == "relax.arange":
        start, step = value.args[0], _int(value.args[2])
        return step is not None and step > 0 and node.sizes.decided(getattr(start, "value", start) >= 0) is True
    if name in ("relax.add", "relax.multiply"):
        return all(_is_natural(node, a) for a in value.args)
    if name == "relax.concat":
        parts = value.args[0]
        parts = node.bound_to(parts)
        return isinstance(parts, relax.Tuple) and all(_is_natural(node, a) for a in parts.fields)
    return name in _VIEWS and _is_natural(node, value.args[0])


def _int(expr: object) -> int | None:
    value = getattr(expr, "value", expr)
    return int(value) if isinstance(value, int | tirx.IntImm) else None


def _is_positive_constant(expr: relax.Expr) -> bool:
    return isinstance(expr, ir.GenericConst) and bool((expr.value.numpy() >= 0).all())


@converter("GatherElements")
def gather_elements(node: Node) -> relax.Expr:
    axis = node.axis(node.attr("axis", 0), node.rank(0))
    data = at_least(node, node.x(0), [None if i == axis else d for i, d in enumerate(node.shape(1))], "data")

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i):
            place = list(i)
            place[axis] = position(indices(*i), data.shape[axis])
            return data(*place)

        return te.compute(indices.shape, element, name="gather_elements")

    return node.te(compute, data, node.x(1))


@converter("GatherND")
@converter("GatherND", domain="com.microsoft")
def gather_nd(node: Node) -> relax.Expr:
    """The last axis of the indices holds places in the axes of the data behind the batch axes."""
    batch, count = int(node.attr("batch_dims", 0)), node.shape(1)[-1]
    node.refuse_unless(isinstance(count, int), "expected a known number of indices per element")
    node.refuse_unless(batch + count <= node.rank(0), f"expected at most {node.rank(0) - batch} indices, found {count}")
    lead = node.rank(1) - 1
    if not batch and _is_natural(node, node.x(1)):
        return _by_rows(node, count)
    node.refuse_unless(batch <= lead, f"expected indices of rank {batch + 1} or more, found {lead + 1}")
    data = same_sizes(node, node.x(0), [*node.shape(1)[:batch], *node.shape(0)[batch:]], "data")

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*i):
            first = list(i[:lead])
            places = [position(indices(*first, k), data.shape[batch + k]) for k in range(count)]
            return data(*i[:batch], *places, *i[lead:])

        return te.compute([*indices.shape[:-1], *data.shape[batch + count :]], element, name="gather_nd")

    return node.te(compute, data, node.x(1))


def _by_rows(node: Node, count: int) -> relax.Expr:
    """GatherND as one gather of rows: operators that lifts can read."""
    data, indices = node.x(0), node.x(1)
    shape, lead = expr_shape(data), expr_shape(indices)[:-1]
    dtype, flat = expr_dtype(indices), None
    for k in range(count):
        part = node.emit(relax.op.strided_slice(indices, [len(lead)], [k], [k + 1]))
        part = node.emit(relax.op.reshape(part, lead))
        if flat is not None:
            stride = node.graph.expr_of(known(np.array([shape[k]], dtype=object), dtype))
            flat = node.emit(relax.op.add(node.emit(relax.op.multiply(flat, stride)), part))
        else:
            flat = part
    rows = node.emit(relax.op.reshape(data, [node.sizes.product(shape[:count]), *shape[count:]]))
    return relax.op.take(rows, flat, 0, mode="clip")


@converter("OneHot")
def one_hot(node: Node) -> relax.Expr:
    """Indices outside -depth..depth-1 give rows of the off value."""
    rank = node.rank(0)
    axis = node.axis(node.attr("axis", -1), rank + 1)
    if node.is_known(1):
        depth: Dim = int(node.scalar(1))
    else:
        if not node.dtype(1).startswith(("int", "uint")):
            node.constant(1)  # asks for a constant
        depth = node.runtime_dims(1)[0]
    shape = list(node.shape(0))
    shape.insert(axis, depth)

    def compute(indices: te.Tensor, values: te.Tensor, out: list) -> te.Tensor:
        def element(*i):
            index = from_start(indices(*i[:axis], *i[axis + 1 :]), prim(out[axis]))
            return tirx.Select(index == i[axis], values[1], values[0])

        return te.compute(out, element, name="one_hot")

    return node.te(compute, node.x(0), node.x(2), shape)


@converter("ReverseSequence")
def reverse_sequence(node: Node) -> relax.Expr:
    """The first `length` steps of every row backwards, the rest as they are."""
    batch_axis, time_axis = int(node.attr("batch_axis", 1)), int(node.attr("time_axis", 0))
    node.refuse_unless({batch_axis, time_axis} == {0, 1}, "expected the axes 0 and 1 as batch and time")
    counts = same_sizes(node, node.x(1), [node.shape(0)[batch_axis]], "sequence_lens")

    def compute(data: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*i):
            place, step = list(i), i[time_axis]
            length = lengths[i[batch_axis]].astype("int64")
            place[time_axis] = clamped(tirx.Select(step < length, length - 1 - step, step), data.shape[time_axis])
            return data(*place)

        return te.compute(data.shape, element, name="reverse_sequence")

    return node.te(compute, node.x(0), counts)
