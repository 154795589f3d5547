"""Operators that only arrange elements: views, transposes, slices, joins, padding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tvm import ir, relax, te, tirx

from ....dimensions import is_one
from ...meaning.builder import Refused
from ...meaning.sizes import prim
from ...meaning.wrapping import around
from .._call import Call, fixed
from .._registry import converter


@converter(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "unsqueeze.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "flatten.using_ints",
    "unflatten.int",
    "view_as.default",
    "_reshape_copy.default",
)
def reshape(c: Call) -> relax.Expr:
    return c.reshape(c.tensor("self"), c.shape)


@converter("permute.default", "transpose.int", "t.default", "numpy_T.default", "mT.default")
def permute(c: Call) -> relax.Expr:
    x, rank = c.tensor("self"), c.rank("self")
    if rank < 2:
        return x
    if "dims" in c.nodes:
        axes = [int(d) % rank for d in c["dims"]]
    else:
        first, second = (c.axis("dim0"), c.axis("dim1")) if "dim0" in c.nodes else (rank - 2, rank - 1)
        axes = list(range(rank))
        axes[first], axes[second] = axes[second], axes[first]
    return c.permute(x, axes)


@converter("expand.default", "expand_as.default", "broadcast_to.default")
def expand(c: Call) -> relax.Expr:
    return c.broadcast(c.tensor("self"), c.shape)


@converter("repeat.default", "tile.default")
def repeat(c: Call) -> relax.Expr:
    """Along an axis of one element it is a broadcast; else a concatenation of the axis with itself."""
    repeats = c["repeats"] if "repeats" in c.nodes else c["dims"]
    shape = c.shape_of("self")
    lead = [1] * (len(c.shape) - len(shape))
    repeats = [1] * (len(c.shape) - len(repeats)) + list(repeats)
    shape = lead + shape
    x = c.reshape(c.tensor("self"), shape)
    ones = [is_one(d) for d in shape]
    x = c.broadcast(x, [r if one else d for d, r, one in zip(shape, repeats, ones)])
    for axis, (times, one) in enumerate(zip(repeats, ones)):
        if one or times == 1:
            continue
        split = list(x.ty.shape.values)
        spread = c.reshape(x, [*split[:axis], 1, *split[axis:]])
        wide = c.broadcast(spread, [*split[:axis], times, *split[axis:]])
        split[axis] = split[axis] * times
        x = c.reshape(wide, split)
    return x


@converter("slice.Tensor")
def slice_(c: Call) -> relax.Expr:
    x, axis, step = c.tensor("self"), c.axis("dim"), int(c["step"])
    length, kept = c.shape_of("self")[axis], c.shape[axis]
    if c.has_shape(x, c.shape):
        return x
    start = wrapped(c, 0 if c["start"] is None else c["start"], length)
    if isinstance(length, tirx.IntImm) or all(isinstance(c[end], int | None) for end in ("start", "end")):
        return _strided(c, x, axis, start, kept, step)  # the ranges of sizes hold what torch found out
    stop = length if c["end"] is None else wrapped(c, c["end"], length)
    found = (tirx.max(prim(stop) - start, tirx.IntImm("int64", 0)) + (step - 1)) // step
    return _strided(c, x, axis, start, kept, step, None if c.sizes.simplify(found - kept) == 0 else length)


def wrapped(c: Call, index: object, length: object) -> object:
    """A slice's start as an index from 0: negative numbers count from the end, and too far is the end."""
    if isinstance(index, int) and isinstance(length, tirx.IntImm):
        return min(max(index + int(length) if index < 0 else index, 0), int(length))
    if isinstance(index, int):
        return tirx.max(length + index, tirx.IntImm("int64", 0)) if index < 0 else index
    zero = tirx.IntImm("int64", 0)
    if not c.sizes.is_size(index):
        index = tirx.max(tirx.Select(index < zero, index + length, index), zero)
    return c.sizes.simplify(tirx.min(index, length))


def _strided(
    c: Call, x: relax.Expr, axis: int, start: object, count: object, step: int, within: object = None
) -> relax.Expr:
    """`count` elements of an axis; none beyond `within`, its size, where torch assumes that there are as many, which no
    range of sizes says: a run that breaks its assumption reads no memory beside the tensor."""
    if isinstance(start, int) and isinstance(count, tirx.IntImm) and int(count):
        stop = start + (int(count) - 1) * step + 1
        # of the first of 4 b rows, clamped, Relax makes two spellings of 1: min(1, 4 b), and that less min(0, 4 b)
        inside = c.sizes.decided(x.ty.shape.values[axis] >= stop) is True
        return c.emit(relax.op.strided_slice(x, [axis], [start], [stop], [step], assume_inbound=inside))
    if within is None and step == 1:
        first, stop = prim(start), c.sizes.simplify(prim(start) + count)
        part = c.emit(relax.op.strided_slice(x, [axis], [first], [stop], [prim(1)], assume_inbound=True))
        if c.sizes.simplify(part.ty.shape.values[axis] - count) == 0:
            return part

    def compute(x: te.Tensor, start: tirx.PrimExpr, count: tirx.PrimExpr) -> te.Tensor:
        shape = [count if a == axis else d for a, d in enumerate(x.shape)]

        def at(*i: tirx.Var) -> tirx.PrimExpr:
            return x[tuple(place(start + j * step) if a == axis else j for a, j in enumerate(i))]

        def place(index: tirx.PrimExpr) -> tirx.PrimExpr:
            return index if within is None else tirx.min(index, x.shape[axis] - 1)

        return te.compute(shape, at, name="slice")

    return c.te(compute, x, prim(start), prim(count), name="slice")


@converter("select.int")
def select(c: Call) -> relax.Expr:
    x, axis = c.tensor("self"), c.axis("dim")
    index, length = c["index"], c.shape_of("self")[axis]
    shape = c.shape_of("self")
    shape[axis] = tirx.IntImm("int64", 1)
    return c.reshape(_strided(c, x, axis, wrapped(c, index, length), shape[axis], 1), c.shape)


@converter("narrow.default")
def narrow(c: Call) -> relax.Expr:
    axis = c.axis("dim")
    return _strided(c, c.tensor("self"), axis, wrapped(c, c["start"], c.shape_of("self")[axis]), c.shape[axis], 1)


@converter(
    "split_with_sizes.default", "split.Tensor", "split.sizes", "chunk.default", "unbind.int", "tensor_split.sections"
)
def split(c: Call) -> tuple[relax.Expr, ...]:
    x, axis = c.tensor("self"), c.axis("dim")
    parts, start = [], 0
    unbind = "unbind" in str(c.node.target)
    for meta in c.node.meta["val"]:
        shape = c.translator.dims.shape(meta.shape)
        count = tirx.IntImm("int64", 1) if unbind else shape[axis]
        parts.append(c.reshape(_strided(c, x, axis, start, count, 1), shape))
        start = start + (int(count) if isinstance(count, tirx.IntImm) else count)
    return tuple(parts)


@converter("cat.default", "concat.default")
def cat(c: Call) -> relax.Expr:
    # a vector of no element may stand for "nothing", whatever the rank of the others
    kept = [
        c.as_tensor(x, c.dtype)
        for x, meta in zip(c["tensors"], c.meta("tensors"))
        if not (meta.dim() == 1 and isinstance(meta.shape[0], int) and meta.shape[0] == 0)
    ]
    return kept[0] if len(kept) == 1 else c.emit(relax.op.concat(kept, int(c["dim"]) % c.out.dim()))


@converter("stack.default")
def stack(c: Call) -> relax.Expr:
    axis = int(c["dim"]) % c.out.dim()
    shape = c.shape
    shape[axis] = 1
    parts = [c.reshape(c.as_tensor(x, c.dtype), shape) for x in c["tensors"]]
    return parts[0] if len(parts) == 1 else c.emit(relax.op.concat(parts, axis))


@converter("constant_pad_nd.default", "pad.default")
def pad(c: Call) -> relax.Expr:
    return _padded(c, c["pad"], c["mode"] if "mode" in c.nodes else "constant", float(c["value"] or 0))


@converter(
    "reflection_pad1d.default", "reflection_pad2d.default", "replication_pad1d.default", "replication_pad2d.default"
)
def mirror_pad(c: Call) -> relax.Expr:
    return _padded(c, c["padding"], "reflect" if "reflection" in str(c.node.target) else "replicate")


def _padded(c: Call, pads: Sequence[object], mode: str, value: float = 0.0) -> relax.Expr:
    """`pads`: before and after the last axis, then the one before it, and so on."""
    amounts = [a if mode == "constant" and isinstance(a, ir.Expr) else fixed(a, "padding") for a in pads]
    before, after = ([*amounts[end::2], *[0] * (c.rank("self") - len(amounts) // 2)][::-1] for end in (0, 1))
    return padded(c, c.tensor("self"), before, after, mode, value)


def padded(
    c: Call,
    x: relax.Expr,
    before: Sequence[int | tirx.PrimExpr],
    after: Sequence[int | tirx.PrimExpr],
    mode: str,
    value: float,
) -> relax.Expr:
    """`x` with elements added (or, for negative amounts, taken away) at both ends of its axes.

    Of constants, amounts may be expressions of sizes.
    """
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise Refused(f"mode={mode!r}")
    amounts = (*before, *after)
    sized = [i for i, amount in enumerate(amounts) if not isinstance(amount, int)]
    if not sized and not any(amounts):
        return x

    def compute(x: te.Tensor, *sizes: tirx.PrimExpr) -> te.Tensor:
        found = dict(zip(sized, sizes))
        known = [found.get(i, amount) for i, amount in enumerate(amounts)]
        before, after = known[: len(x.shape)], known[len(x.shape) :]
        shape = [d + b + a for d, b, a in zip(x.shape, before, after)]

        def at(*i: tirx.Var) -> tirx.PrimExpr:
            index, inside = [], []
            for j, d, b, a in zip(i, x.shape, before, after):
                k = j - b
                if mode == "reflect" and (b or a):
                    k = tirx.abs(k)
                    k = tirx.Select(k >= d, 2 * d - 2 - k, k)
                elif mode == "replicate" and (b or a):
                    k = tirx.max(tirx.min(k, d - 1), tirx.IntImm("int64", 0))
                elif mode == "circular" and (b < 0 or a < 0):  # what is left once these are cut repeats
                    k = tirx.floormod(j - max(b, 0), d + min(b, 0) + min(a, 0)) - min(b, 0)
                elif mode == "circular" and (b or a):  # torch turns once at most
                    k = tirx.Select(k < 0, k + d, tirx.Select(k >= d, k - d, k))
                else:
                    inside += [k >= 0] if not isinstance(b, int) or b > 0 else []
                    inside += [k < d] if not isinstance(a, int) or a > 0 else []
                index.append(k)
            return (
                tirx.if_then_else(tirx.all(*inside), x[tuple(index)], tirx.const(value, x.dtype))
                if inside
                else x[tuple(index)]
            )

        return te.compute(shape, at, name="pad")

    return c.te(compute, x, *(amounts[i] for i in sized), name="pad")


@converter("flip.default")
def flip(c: Call) -> relax.Expr:
    x = c.tensor("self")
    for axis in c["dims"]:
        x = c.emit(relax.op.flip(x, int(axis) % c.rank("self")))
    return x


@converter("roll.default")
def roll(c: Call) -> relax.Expr:
    """Elements pushed out at one end come in at the other; shifts of an axis add. No dims: the flat tensor rolls."""
    x, axes, shifts = c.tensor("self"), list(c["dims"]), list(c["shifts"])
    if c.rank("self") == 0:
        return x
    if not axes:
        flat = c.reshape(x, [c.sizes.product(c.shape)])
        return c.reshape(_rolled(c, flat, [0], shifts), c.shape)
    return _rolled(c, x, [int(a) % c.rank("self") for a in axes], shifts)


def _rolled(c: Call, x: relax.Expr, axes: list[int], shifts: list[int | tirx.PrimExpr]) -> relax.Expr:
    by: dict[int, int | tirx.PrimExpr] = defaultdict(int)
    for axis, amount in zip(axes, shifts):
        by[axis] += amount

    def compute(x: te.Tensor, *amounts: tirx.PrimExpr) -> te.Tensor:
        found = dict(zip(by, amounts))

        def at(*i: tirx.Var) -> tirx.PrimExpr:
            places = enumerate(zip(i, x.shape))
            return x[tuple(around(j - tirx.floormod(found[a], d), d) if a in found else j for a, (j, d) in places)]

        return te.compute(x.shape, at, name="roll")

    return c.te(compute, x, *map(prim, by.values()), name="roll")


@converter("tril.default", "triu.default")
def triangle(c: Call) -> relax.Expr:
    x, k, lower = c.tensor("self"), int(c["diagonal"]), "tril" in str(c.node.target)

    def compute(x: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.PrimExpr:
            keep = i[-1] <= i[-2] + k if lower else i[-1] >= i[-2] + k
            return tirx.Select(keep, x[i], tirx.const(0, x.dtype))

        return te.compute(x.shape, at, name="triangle")

    return c.te(compute, x, name="triangle")


@converter("unfold.default")
def unfold(c: Call) -> relax.Expr:
    """Windows of an axis: out[..., n, ..., w] = x[..., n * step + w, ...]."""
    x, axis, step = c.tensor("self"), c.axis("dimension"), fixed(c["step"], "step")
    shape = c.shape

    def compute(x: te.Tensor) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.PrimExpr:
            return x[tuple(j * step + i[-1] if a == axis else j for a, j in enumerate(i[:-1]))]

        return te.compute(shape, at, name="unfold")

    return c.te(compute, x, name="unfold")


@converter("pixel_shuffle.default")
def pixel_shuffle(c: Call) -> relax.Expr:
    *lead, channels, h, w = c.shape_of("self")
    r, n = int(c["upscale_factor"]), len(lead)
    split = c.reshape(c.tensor("self"), [*lead, tirx.floordiv(channels, r * r), r, r, h, w])
    return c.reshape(c.permute(split, [*range(n + 1), n + 3, n + 1, n + 4, n + 2]), c.shape)
