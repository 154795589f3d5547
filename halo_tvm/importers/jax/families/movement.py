"""Elements in other places: shapes, axes, parts and repetition. Of a weight, a reshape is a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ....dimensions import is_one
from ...meaning.builder import expr_shape
from ...meaning.constant import Constant, numpy_dtype
from ...meaning.sizes import Dim, prim
from .._primitive import Primitive
from .._registry import converter
from .._values import Derived, Opaque, Spread, Value


def reshaped(c: Primitive, value: Value, shape: Sequence[Dim]) -> Value:
    """`value` in another shape."""
    if isinstance(value, Constant) and all(isinstance(d, int) for d in shape):
        sizes = tuple(int(d) for d in shape)
        if sizes == value.shape:
            return value
        if value.name and sizes[len(sizes) - len(value.shape) :] == value.shape and len(sizes) > len(value.shape):
            return Spread(value, sizes)  # axes in front, of size 1
        return Derived(
            sizes,
            value.dtype,
            lambda: value.load().reshape(sizes),
            value.name,
            base=value.base if isinstance(value, Derived) and value.recipe == "reshape" else value,
            recipe="reshape",
            attrs={"shape": list(sizes)},
        )
    if isinstance(value, Spread) and _count(value.small) == 1:
        return Spread(_as_scalar(c, value.small), tuple(shape))
    return c.reshape(c.walker.expr_of(value), shape)


def permuted(c: Primitive, value: Value, axes: Sequence[int]) -> Value:
    """`value` with its axes in another order; a turned matrix of weights stays visible to lifts."""
    axes = list(axes)
    if isinstance(value, Constant) and value.name:
        shape = tuple(value.shape[a] for a in axes)
        moved = [a for a in axes if value.shape[a] != 1]
        if moved == sorted(moved):
            return reshaped(c, value, shape)
        if len(axes) > 2:
            return Derived(
                shape,
                value.dtype,
                lambda: value.load().transpose(axes),
                value.name,
                base=value,
                recipe="permute_dims",
                attrs={"axes": axes},
            )
    if isinstance(value, Spread):
        small = c.walker.expr_of(value.small)
        own = expr_shape(small)
        full = c.reshape(small, [*[1] * (len(axes) - len(own)), *own])
        return c.spread(_trimmed(c, c.permute(full, axes)), [value.shape[a] for a in axes])
    return c.permute(c.walker.expr_of(value), axes)


def _count(small: relax.Expr | Constant) -> int:
    """The number of elements, or 0 where that is symbolic."""
    shape = small.shape if isinstance(small, Constant) else expr_shape(small)
    return int(np.prod([d if isinstance(d, int) else 0 for d in shape], dtype=np.int64))


def _as_scalar(c: Primitive, small: relax.Expr | Constant) -> relax.Expr | Constant:
    out = reshaped(c, small, [])
    assert not isinstance(out, Spread | Opaque)
    return out


def _trimmed(c: Primitive, small: relax.Expr) -> relax.Expr:
    """Without its first axes of size 1: they broadcast anyway."""
    shape = expr_shape(small)
    while shape and is_one(shape[0]):
        shape = shape[1:]
    return c.reshape(small, shape)


@converter("reshape", "squeeze", "expand_dims")
def reshape(c: Primitive) -> Value:
    ordered = c.op == "reshape" and c.params["dimensions"] is not None
    c.refuse_unless(not ordered, "an order of dimensions")
    return reshaped(c, c.values[0], c.shape)


@converter("transpose")
def transpose(c: Primitive) -> Value:
    return permuted(c, c.values[0], c.params["permutation"])


@converter("broadcast_in_dim")
def broadcast_in_dim(c: Primitive) -> Value:
    value, shape, places = c.values[0], c.shape, list(c.params["broadcast_dimensions"])
    small = value.small if isinstance(value, Spread) else value
    if isinstance(small, Opaque):
        c.refuse(f"an array of {small.array.dtype}")
    own = list(small.shape) if isinstance(small, Constant) else expr_shape(small)
    places = places[len(places) - len(own) :]
    axes = [a for a, d in zip(places, own) if not is_one(d)]
    wanted: list[Dim] = [1] * (len(shape) - axes[0]) if axes else []
    for axis, dim in zip(places, own):
        if not is_one(dim):
            wanted[axis - len(shape)] = dim
    moved = reshaped(c, small, wanted)
    assert not isinstance(moved, Spread | Opaque)
    if not isinstance(moved, Constant) and len(wanted) == len(own) == len(shape):
        return c.spread(moved, shape)
    unit = [d if not is_one(d) else 1 for d in shape]
    if len([d for d in unit if not is_one(d)]) == len(axes) and not isinstance(moved, Constant):
        return c.reshape(moved, shape)  # no element repeats
    return c.spread(moved, shape)


@converter("concatenate")
def concatenate(c: Primitive) -> Value:
    parts = [c.x(i) for i in range(len(c.values)) if not _is_empty(c, i)]
    if len(parts) == 1:
        return parts[0]
    return c.emit(relax.op.concat(parts, int(c.params["dimension"])))


def _is_empty(c: Primitive, index: int) -> bool:
    return any(isinstance(d, int) and d == 0 for d in c.shape_of(index))


@converter("stack")
def stack(c: Primitive) -> Value:
    axis = int(c.params["axis"])
    shape = c.shape
    shape[axis] = 1
    return c.emit(relax.op.concat([c.reshape(c.x(i), shape) for i in range(len(c.values))], axis))


@converter("unstack")
def unstack(c: Primitive) -> list[Value]:
    axis, x = int(c.params["axis"]), c.x()
    return [c.reshape(_part(c, x, axis, place, place + 1), c.shape_out(place)) for place in range(len(c.eqn.outvars))]


def _part(c: Primitive, x: relax.Expr, axis: int, begin: Dim, end: Dim) -> relax.Expr:
    return c.emit(relax.op.strided_slice(x, [axis], [prim(begin)], [prim(end)]))


@converter("slice")
def slice_(c: Primitive) -> Value:
    begin, end = (c.walker.dims.shape(c.params[f"{which}_indices"]) for which in ("start", "limit"))
    strides = [int(s) for s in c.params["strides"] or [1] * len(begin)]
    shape = c.shape_of(0)
    value = c.values[0]
    if isinstance(value, Spread) and _count(value.small) == 1:
        return Spread(value.small, tuple(c.shape))
    axes = [
        a
        for a, (b, e, s) in enumerate(zip(begin, end, strides))
        if s != 1 or not (c.sizes.is_equal(b, 0) and c.sizes.is_equal(e, shape[a]))
    ]
    if not axes:
        return value
    bounds = [[prim(part[a]) for a in axes] for part in (begin, end)]
    return c.emit(relax.op.strided_slice(c.x(), axes, *bounds, [prim(strides[a]) for a in axes]))


@converter("split")
def split(c: Primitive) -> list[Value]:
    sizes = c.walker.dims.shape(c.params["sizes"])
    axis, x = int(c.params["axis"]), c.x()
    if len(sizes) == 1:
        return [x]
    if all(isinstance(s, int) for s in sizes):
        ends = np.cumsum([int(s) for s in sizes])[:-1]
        parts = c.block.emit(relax.op.split(x, [int(e) for e in ends], axis), c.name)
        return [c.emit(relax.TupleGetItem(parts, i)) for i in range(len(sizes))]
    out: list[Value] = []
    begin: Dim = 0
    for size in sizes:
        end = c.sizes.simplify(prim(begin) + size)
        out.append(_part(c, x, axis, begin, end))
        begin = end
    return out


@converter("rev")
def reverse(c: Primitive) -> Value:
    x = c.x()
    for axis in c.params["dimensions"]:
        x = c.emit(relax.op.flip(x, int(axis)))
    return x


@converter("tile")
def tile(c: Primitive) -> Value:
    return c.emit(relax.op.tile(c.x(), [int(r) for r in c.params["reps"]]))


@converter("pad")
def pad(c: Primitive) -> Value:
    """Elements around and between; a negative width cuts off."""
    widths = [(c.walker.dims.dim(low), int(inside) + 1) for low, _, inside in c.params["padding_config"]]
    return padded(c, c.x(0), c.x(1), widths, c.shape)


def padded(
    c: Primitive, x: relax.Expr, value: relax.Expr, widths: Sequence[tuple[Dim, int]], shape: Sequence[Dim]
) -> relax.Expr:
    """`x` in a tensor of `shape` full of `value`: along each axis `widths` has where it begins, and its step."""

    def compute(x: te.Tensor, value: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            inside, at = [], []
            for i, (low, step), size in zip(index, widths, x.shape):
                place = i - prim(low)
                inside += [place >= 0]
                if step != 1:
                    inside.append(tirx.floormod(place, step) == 0)
                    place = tirx.floordiv(place, step)
                inside.append(place < size)
                at.append(place)
            return tirx.if_then_else(tirx.all(*inside), x[tuple(at)], value[()]) if at else x[()]

        return te.compute([prim(d) for d in shape], element, name="pad")

    return c.te(compute, x, value, name="pad")


@converter("iota")
def iota(c: Primitive) -> Value:
    shape, axis, dtype = c.shape, int(c.params["dimension"]), c.dtype
    count = shape[axis]
    small: Value
    if isinstance(count, int):
        small = Constant.of(np.arange(count).astype(numpy_dtype(dtype)))
    else:
        whole = dtype if dtype in ("int32", "int64") else "int64"
        small = c.cast(c.emit(relax.op.arange(0, prim(count), 1, whole)), dtype)
    small = reshaped(c, small, [count, *[1] * (len(shape) - axis - 1)])
    assert not isinstance(small, Spread | Opaque)
    return c.spread(small, shape)


@converter("dim_as_value", "dimension_size")
def dim_as_value(c: Primitive) -> Value:
    dim = c.params["dim"] if "dim" in c.params else c.eqn.invars[0].aval.shape[c.params["dimension"]]
    return size_value(c, c.walker.dims.dim(dim), c.dtype)


def size_value(c: Primitive, size: Dim, dtype: str) -> Value:
    """A size as a number that only the run knows."""
    if isinstance(size, int):
        return Constant.of(np.asarray(size, numpy_dtype(dtype)))
    one = c.emit(relax.op.arange(size, size + 1, 1, "int64"))
    return c.cast(c.reshape(one, []), dtype)


@converter("empty", "empty2")
def empty(c: Primitive) -> Value:
    return c.spread(Constant.of(np.zeros((), numpy_dtype(c.dtype))), c.shape)
