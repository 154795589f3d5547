"""Parts of tensors, and tensors of repeated parts: Slice, Split, Tile, Trilu, CenterCropPad, EyeLike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, te, tirx

from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter
from ._values import Symbolic, element_dtype

_FAR = (1 << 31) - 1  # an end from here on means "all": the largest of 32 bits is how some exporters write it


@converter("Slice")
def slice_(node: Node) -> relax.Expr:
    """Starts and ends are numbers, expressions of sizes, or known at run time only; negative ones count from
    the end."""
    rank = node.rank(0)
    old = node.opset < 10
    axes = node.attr("axes", None) if old else (node.ints(3) if node.has(3) else None)
    node.refuse_unless(old or node.rank(1) == 1, "expected starts of one axis, as ONNX asks for")
    count = len(node.attr("starts")) if old else node.shape(1)[0]
    node.refuse_unless(isinstance(count, int), "expected a known number of starts")
    axes = [node.axis(a, rank) for a in (range(count) if axes is None else axes)]
    known = old or all(not node.has(i) or isinstance(node.inputs[i], Constant | Symbolic) for i in (1, 2, 4))
    if not known:
        return _slice_at_run_time(node, axes)
    starts = list(node.attr("starts")) if old else node.dims(1)
    ends = list(node.attr("ends")) if old else node.dims(2)
    steps = node.ints(4) if not old and node.has(4) else [1] * len(axes)
    node.refuse_unless(all(steps), "expected steps that are not 0")
    return sliced(node, node.x(0), axes, starts, ends, steps)


def sliced(
    node: Node, x: relax.Expr, axes: Sequence[int], starts: Sequence[Dim], ends: Sequence[Dim], steps: Sequence[int]
) -> relax.Expr:
    """`x` from starts to ends as ONNX counts them."""
    shape = expr_shape(x)
    begins, lengths = [], []
    for axis, start, end, step in zip(axes, starts, ends, steps):
        begin, length = bounds(node, shape[axis], start, end, step)
        begins.append(begin)
        lengths.append(length)
    if all(step > 0 for step in steps):
        kept = [
            i for i, axis in enumerate(axes) if not (steps[i] == 1 and node.sizes.is_equal(lengths[i], shape[axis]))
        ]
        if not kept:
            return x
        stops = [node.sizes.simplify(prim(begins[i]) + prim(lengths[i]) * steps[i]) for i in kept]
        out = relax.op.strided_slice(
            x,
            [axes[i] for i in kept],
            [prim(begins[i]) for i in kept],
            [prim(stop) for stop in stops],
            [prim(steps[i]) for i in kept],
            assume_inbound=True,
        )
        return _of_shape(node, node.emit(out), replaced(shape, axes, lengths))

    def compute(data: te.Tensor, sizes: list, first: list) -> te.Tensor:
        def element(*index):
            place = list(index)
            for axis, begin, step in zip(axes, first, steps):
                place[axis] = index[axis] * step + begin
            return data(*place)

        return te.compute(sizes, element, name="slice")

    return node.te(compute, x, replaced(shape, axes, lengths), begins)


def bounds(node: Node, size: Dim, start: Dim, end: Dim, step: int) -> tuple[Dim, Dim]:
    """First position and number of positions, for an axis of `size`."""
    sizes = node.sizes
    start, end = _from_end(node, start, size), _from_end(node, end, size)
    if step > 0:
        begin = _clamped(node, start, 0, size)
        stop = _clamped(node, end, 0, size)
        span = sizes.simplify(prim(stop) - begin)
    else:
        # A walk back begins in the axis: in front of it is its first element. No axis without elements has one.
        last = sizes.simplify(prim(size) - 1)
        begin = _clamped(node, start, 0, size)
        if sizes.decided(prim(begin) <= prim(last)) is not True:
            begin = sizes.minimum(begin, last)
        stop = _clamped(node, end, -1, last)
        span = sizes.simplify(prim(begin) - stop)
    if sizes.decided(prim(span) >= 0) is not True:
        span = sizes.maximum(span, 0)
    return begin, span if abs(step) == 1 else sizes.ceildiv(span, abs(step))


def _from_end(node: Node, index: Dim, size: Dim) -> Dim:
    if isinstance(index, int):
        if index >= _FAR:
            return size
        if index <= -_FAR:
            return -1
        return index if index >= 0 else node.sizes.simplify(prim(size) + index)
    negative = node.sizes.decided(index < 0)
    if negative is False:
        return index
    moved = prim(size) + index
    return node.sizes.simplify(moved if negative else tirx.Select(index < 0, moved, index))


def _clamped(node: Node, value: Dim, low: int, high: Dim) -> Dim:
    decided = node.sizes.decided
    if decided(prim(value) <= prim(high)) is not True:
        value = node.sizes.minimum(value, high)
    if decided(prim(value) >= low) is not True:
        value = node.sizes.maximum(value, low)
    return value


def replaced(shape: Sequence[Dim], axes: Sequence[int], lengths: Sequence[Dim]) -> list[Dim]:
    out = list(shape)
    for axis, length in zip(axes, lengths):
        out[axis] = length
    return out


def _of_shape(node: Node, x: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
    """`x`, whose sizes are those of `shape` in other words, with these words."""
    return x if node.has_shape(x, shape) else node.declared(x, shape)


def _slice_at_run_time(node: Node, axes: list[int]) -> relax.Expr:
    """First positions, steps and lengths are computed into one tensor, whose lengths become new dimensions."""
    x, shape = node.x(0), node.shape(0)
    given = [node.x(i) for i in (1, 2, 4) if node.has(i)]

    def limits(sizes: list, starts: te.Tensor, ends: te.Tensor, *steps: te.Tensor) -> te.Tensor:
        def of(axis: int) -> tuple:
            zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
            size = prim(sizes[axis]).astype("int64")
            step = steps[0][axis].astype("int64") if steps else one
            forward = step > 0

            def moved(value):
                return tirx.Select(value < 0, value + size, value)

            # The least integer plus a size is still negative, so that no sum leaves int64.
            begin, end = moved(starts[axis].astype("int64")), moved(ends[axis].astype("int64"))
            last = tirx.Select(forward, size, size - 1)
            # A walk back begins in the axis, and ends in front of it at most; an axis without elements has no first.
            begin = tirx.min(tirx.max(begin, zero), last)
            end = tirx.max(tirx.min(end, last), tirx.Select(forward, zero, -one))
            span = tirx.max(tirx.Select(forward, end - begin, begin - end), zero)
            pace = tirx.max(tirx.Select(forward, step, -step), one)
            return begin, step, tirx.floordiv(span + pace - 1, pace)

        rows = [of(position) for position in range(len(axes))]

        def element(kind, position):
            out = rows[0][0]
            for p, row in enumerate(rows):
                for k, value in enumerate(row):
                    out = tirx.Select(tirx.all(kind == k, position == p), value, out)
            return out

        return te.compute((3, len(axes)), element, name="bounds")

    table = node.te(limits, [shape[a] for a in axes], *given, name="onnx_slice_bounds")
    last = node.emit(relax.op.strided_slice(table, [0], [2], [3]))
    lengths = node.sizes_from(node.emit(relax.op.reshape(last, (len(axes),))), len(axes))

    def compute(data: te.Tensor, where: te.Tensor, sizes: list) -> te.Tensor:
        def element(*index):
            place = list(index)
            for position, axis in enumerate(axes):
                place[axis] = where[0, position] + index[axis] * where[1, position]
            return data(*place)

        return te.compute(sizes, element, name="slice")

    return node.te(compute, x, table, replaced(shape, axes, lengths))


@converter("Split")
def split(node: Node) -> tuple[relax.Expr, ...]:
    """Parts of given sizes; of equal ones, the last smaller, where none are given."""
    x, rank = node.x(0), node.rank(0)
    axis = node.axis(node.attr("axis", 0), rank)
    size = node.shape(0)[axis]
    count = len(node.outputs)
    if node.has(1):
        parts = node.runtime_dims(1)
    elif node.attr("split", None) is not None:
        parts = list(node.attr("split"))
    else:
        pieces = int(node.attr("num_outputs", count))
        node.refuse_unless(pieces == count, f"expected num_outputs of {count}, found {pieces}")
        part = node.sizes.ceildiv(size, count)
        parts = [part] * (count - 1) + [node.sizes.simplify(prim(size) - prim(part) * (count - 1))]
        if node.sizes.decided(prim(parts[-1]) >= 0) is not True:
            parts[-1] = node.sizes.maximum(parts[-1], 0)
    node.refuse_unless(len(parts) == count, f"expected {count} sizes, found {len(parts)}")
    total: Dim = 0
    starts = []
    for part in parts:
        starts.append(total)
        total = node.sizes.simplify(prim(total) + part)
    if not node.sizes.is_equal(total, size):
        known = isinstance(total, int) and isinstance(size, int)
        node.refuse_unless(not known, f"expected sizes that sum to {size}, found {total}")
        # a run where they do not is refused, so that no part reads outside the tensor
        x = node.declared(x, replaced(node.shape(0), [axis], [total]))
    out = []
    for start, part in zip(starts, parts):
        end = node.sizes.simplify(prim(start) + part)
        piece = relax.op.strided_slice(x, [axis], [prim(start)], [prim(end)], [prim(1)], assume_inbound=True)
        shape = replaced(expr_shape(x), [axis], [part])
        out.append(_of_shape(node, node.emit(piece), shape))
    return tuple(out)


@converter("Tile")
def tile(node: Node) -> relax.Expr:
    """Repeats may be numbers, expressions of sizes, or known at run time only."""
    if node.opset < 6:
        repeats, axis = node.ints(1)[0], node.ints(2)[0]
        factors = [repeats if i == axis else 1 for i in range(node.rank(0))]
    else:
        factors = node.runtime_dims(1)
    x, shape = node.x(0), node.shape(0)
    if all(isinstance(f, int) and f == 1 for f in factors):
        return x
    if len(factors) < len(shape):
        node.refuse(f"expected {len(shape)} repeats, found {len(factors)}")
    if all(isinstance(f, int) for f in factors):
        return relax.op.tile(x, factors)

    def compute(data: te.Tensor, out: list) -> te.Tensor:
        return te.compute(out, lambda *i: data(*(tirx.floormod(p, s) for p, s in zip(i, data.shape))), name="tile")

    return node.te(compute, x, [node.sizes.product([d, f]) for d, f in zip(shape, factors)])


@converter("Trilu")
@converter("Trilu", domain="com.microsoft")
def trilu(node: Node) -> relax.Expr:
    upper = bool(node.attr("upper", 1))
    x = node.x(0)
    if not node.has(1) or node.is_known(1):
        k = int(node.scalar(1)) if node.has(1) else 0
        k = max(-_FAR, min(k, _FAR))
        if node.dtype(0) != "bool":
            return relax.op.triu(x, k) if upper else relax.op.tril(x, k)
        return node.te(_triangle(upper, lambda _: k), x)
    return node.te(_triangle(upper, lambda t: t[0](*[0] * len(t[0].shape)).astype("int64")), x, node.x(1))


def _triangle(upper: bool, diagonal: Callable) -> Callable:
    def compute(data: te.Tensor, *k: te.Tensor) -> te.Tensor:
        def element(*i):
            distance = i[-1] - i[-2]
            kept = distance >= diagonal(k) if upper else distance <= diagonal(k)
            return tirx.Select(kept, data(*i), tirx.const(0, data.dtype))

        return te.compute(data.shape, element, name="triangle")

    return compute


@converter("CenterCropPad")
def center_crop_pad(node: Node) -> relax.Expr:
    """Axes longer than wanted lose elements at both ends, shorter ones gain zeros."""
    shape, x = node.shape(0), node.x(0)
    axes = [node.axis(a, len(shape)) for a in node.attr("axes", list(range(len(shape))))]
    wanted = node.runtime_dims(1)
    node.refuse_unless(len(wanted) == len(axes), f"expected {len(axes)} sizes, found {len(wanted)}")

    def compute(data: te.Tensor, out: list) -> te.Tensor:
        def element(*index):
            place, inside = list(index), []
            for axis in axes:
                size, target = prim(data.shape[axis]), prim(out[axis])
                cut, added = tirx.floordiv(size - target, 2), tirx.floordiv(target - size, 2)
                at = index[axis] + tirx.Select(size >= target, cut, -added)
                place[axis] = at
                inside += [at >= 0, at < size]
            return tirx.if_then_else(tirx.all(*inside), data(*place), tirx.const(0, data.dtype))

        return te.compute(out, element, name="center")

    return node.te(compute, x, replaced(shape, axes, wanted))


@converter("EyeLike")
def eye_like(node: Node) -> relax.Expr:
    k = int(node.attr("k", 0))
    dtype = element_dtype(node.attr("dtype")) if node.has_attr("dtype") else node.dtype(0)

    def compute(sizes: list) -> te.Tensor:
        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        return te.compute(sizes, lambda i, j: tirx.Select(j - i == k, one, zero), name="eye")

    return node.te(compute, list(node.shape(0)))
