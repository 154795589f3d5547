"""Sizes and views: what changes a tensor's shape and no element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx

from ...artifact import Condition
from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from ..meaning.counting import counted
from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter
from ._values import Symbolic


@converter("Identity")
def identity(node: Node) -> object:
    return node.value(0)


@converter("Reshape")
def reshape(node: Node) -> relax.Expr:
    """-1 takes what is left, 0 keeps the size of the input (unless allowzero)."""
    dims = node.dims(1) if node.has(1) else list(node.attr("shape"))
    shape = node.shape(0)
    if not node.attr("allowzero", 0):
        dims = [shape[i] if isinstance(d, int) and d == 0 else d for i, d in enumerate(dims)]
    dims = filled(node, dims, shape)
    node.refuse_unless(not any(isinstance(d, int) and d == 0 for d in dims), "a result without elements")
    return relax.op.reshape(_of_size(node, node.x(0), dims), dims)


def _of_size(node: Node, x: relax.Expr, dims: Sequence[Dim]) -> relax.Expr:
    """`x`, declared to have as many elements as `dims` where that cannot be proven."""
    count, wanted = node.sizes.product(expr_shape(x)), node.sizes.product(dims)
    if node.sizes.is_equal(count, wanted) or isinstance(count, int) and isinstance(wanted, int):
        return x
    return node.declared(relax.op.reshape(x, [count]), [wanted])


def filled(node: Node, dims: list[Dim], shape: tuple[Dim, ...]) -> list[Dim]:
    """`dims` with the size -1 replaced by what is left of `shape`."""
    free = [i for i, d in enumerate(dims) if isinstance(d, int) and d == -1]
    if not free:
        return dims
    node.refuse_unless(len(free) == 1, f"expected at most one size of -1, found {len(free)}")
    rest = dims[: free[0]] + dims[free[0] + 1 :]
    left = list(shape)
    for dim in list(rest):  # sizes on both sides cancel: n*h*d / (n*h) stays simple
        match = next((i for i, s in enumerate(left) if node.sizes.is_equal(s, dim)), None)
        if match is not None:
            left.pop(match)
            rest.remove(dim)
    total, given = node.sizes.product(left), node.sizes.product(rest)
    node.refuse_unless(not (isinstance(given, int) and given == 0), "expected sizes that are not 0 beside -1")
    dims[free[0]] = node.sizes.floordiv(total, given)
    return dims


@converter("Flatten")
def flatten(node: Node) -> relax.Expr:
    shape = node.shape(0)
    axis = int(node.attr("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return relax.op.reshape(node.x(0), [node.sizes.product(shape[:axis]), node.sizes.product(shape[axis:])])


@converter("Squeeze")
def squeeze(node: Node) -> relax.Expr:
    shape = node.shape(0)
    axes = _axes(node, len(shape))
    if axes is None:
        axes = [i for i, d in enumerate(shape) if node.sizes.decided(prim(d) == 1) is True]
        _stay_apart_from_one(node, [d for i, d in enumerate(shape) if i not in axes])
    unproven = False
    for axis in axes:
        known = node.sizes.decided(prim(shape[axis]) == 1) if not isinstance(shape[axis], int) else shape[axis] == 1
        node.refuse_unless(known is not False, f"expected a size of 1 at axis {axis}, found {shape[axis]}")
        unproven = unproven or known is None
    x = node.x(0)
    if unproven:
        x = node.declared(x, [1 if i in axes else d for i, d in enumerate(shape)])
    return relax.op.reshape(x, [d for i, d in enumerate(shape) if i not in axes])


def _stay_apart_from_one(node: Node, shape: Sequence[Dim]) -> None:
    """Say that open sizes are not 1: there, a result has another rank."""
    for dim in shape:
        if isinstance(dim, tirx.Var) and node.sizes.decided(dim == 1) is None:
            text = f"{dim.name} not to be 1, where {node.op} without axes drops it (compile with --shape for that)"
            condition = Condition(["-", dim.name, 1], "not 0", text)
            if condition not in node.graph.conditions:
                node.graph.conditions.append(condition)


@converter("Unsqueeze")
def unsqueeze(node: Node) -> relax.Expr:
    axes = node.ints(1) if node.has(1) else list(node.attr("axes"))
    shape = list(node.shape(0))
    for axis in sorted(node.axis(a, len(shape) + len(axes)) for a in axes):
        shape.insert(axis, 1)
    return relax.op.reshape(node.x(0), shape)


def _axes(node: Node, rank: int) -> list[int] | None:
    axes = node.ints(1) if node.has(1) else node.attr("axes", None)
    return None if axes is None else [node.axis(a, rank) for a in axes]


@converter("Transpose")
def transpose(node: Node) -> relax.Expr:
    return relax.op.permute_dims(node.x(0), node.attr("perm", list(reversed(range(node.rank(0))))))


@converter("Expand")
def expand(node: Node) -> relax.Expr:
    shape, wanted = node.shape(0), node.runtime_dims(1)
    rank = max(len(shape), len(wanted))
    old: list[Dim] = [1] * (rank - len(shape)) + list(shape)
    new: list[Dim] = [1] * (rank - len(wanted)) + list(wanted)
    out = [_expanded(node, a, b) for a, b in zip(old, new)]
    x = node.x(0)
    if len(shape) < rank:
        x = node.emit(relax.op.reshape(x, old))
    own = [a if isinstance(a, int) else b for a, b in zip(old, out)]
    if not node.sizes.same_shape(old, own):
        x, old = node.declared(x, own), own
    return x if node.sizes.same_shape(old, out) else relax.op.broadcast_to(x, out)


def _expanded(node: Node, old: Dim, new: Dim) -> Dim:
    """What a size becomes. A symbolic one is not taken for a 1 that is repeated: a run where it is one is refused."""
    if isinstance(old, int) and old == 1:
        return new
    if isinstance(new, int) and new == 1 or node.sizes.is_equal(old, new):
        return old
    if isinstance(old, int):
        node.refuse_unless(not isinstance(new, int), f"a size of {old} cannot be expanded to {new}")
        return old
    return new


@converter("Concat")
def concat(node: Node) -> relax.Expr:
    """Sizes beside the axis that may differ, as far as can be proven, are declared equal."""
    xs = node.xs()
    axis = node.axis(node.attr("axis", 1), node.rank(0))
    wanted = list(node.shape(0))
    for index in range(1, len(xs)):
        wanted = [d if isinstance(d, int) else w for d, w in zip(node.shape(index), wanted)]
    parts = []
    for index, x in enumerate(xs):
        shape = node.shape(index)
        node.refuse_unless(len(shape) == len(wanted), f"expected ranks of {len(wanted)}, found {len(shape)}")
        dims = [d if i == axis else w for i, (d, w) in enumerate(zip(shape, wanted))]
        for dim, size in zip(shape, dims):
            known = isinstance(dim, int) and isinstance(size, int)
            node.refuse_unless(not known or dim == size, f"sizes {dim} and {size} meet beside the axis {axis}")
        parts.append(x if node.sizes.same_shape(shape, dims) else node.declared(x, dims))
    return relax.op.concat(parts, axis) if len(parts) > 1 else parts[0]


@converter("ConstantOfShape")
def constant_of_shape(node: Node) -> relax.Expr:
    value = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(-1)[0]
    dims = node.runtime_dims(0)
    return relax.op.full(relax.ShapeExpr(dims), relax.const(value, str(value.dtype)), str(value.dtype))


@converter("Range")
def arange(node: Node) -> relax.Expr:
    """Numbers and expressions of sizes count directly; anything else gives a length at run time."""
    dtype = node.dtype(0)
    sized = dtype in ("int64", "int32", "int16") and all(
        isinstance(node.inputs[i], Constant | Symbolic) for i in range(3)
    )
    if sized and node.is_known(2):
        start, stop, step = (_number(node, i) for i in range(3))
        out = counted(node.emit, start, stop, step)
        return out if dtype == "int64" else relax.op.astype(out, dtype)
    wide = "float64" if dtype.startswith(("float", "bfloat")) else "int64"

    def first(tensor: te.Tensor) -> tirx.PrimExpr:
        return tensor(*[0] * len(tensor.shape))

    def count(start: te.Tensor, stop: te.Tensor, step: te.Tensor) -> te.Tensor:
        begin, end, pace = (first(t).astype(wide) for t in (start, stop, step))
        if wide == "float64":
            length = tirx.ceil((end - begin) / pace).astype("int64")
        else:
            up = tirx.floordiv(end - begin + pace - 1, tirx.max(pace, 1))
            down = tirx.floordiv(begin - end - pace - 1, tirx.max(-pace, 1))
            length = tirx.Select(pace > 0, up, down)
        return te.compute((1,), lambda _: tirx.max(length, tirx.const(0, "int64")), name="length")

    xs = [node.x(i) for i in range(3)]
    (length,) = node.sizes_from(node.te(count, *xs, name="onnx_range_length"), 1)

    def values(start: te.Tensor, step: te.Tensor, size: list) -> te.Tensor:
        return te.compute(size, lambda i: first(start) + i.astype(dtype) * first(step), name="range")

    return node.te(values, xs[0], xs[2], [length])


def _number(node: Node, index: int) -> Dim:
    dims = node.dims(index)
    node.refuse_unless(len(dims) == 1, f"expected one number as input {index}, found {len(dims)}")
    return dims[0]
