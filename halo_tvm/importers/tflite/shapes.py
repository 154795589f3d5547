"""Sizes, and tensors of another shape with the same elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._node import Channels, Node, Refused, Result
from ._registry import pairs, writes
from .elementwise import operands


@writes("SHAPE")
def shape(node: Node) -> Result:
    out = node.emit("Shape", node.stored(0))
    return Result(node.emit("Cast", out, to=6) if node.output().dtype == "int32" else out, stored=True)


for _name, _write in {
    "DENSIFY": lambda node: Result(node.stored(0), stored=True),  # which is dense as soon as it is read
    "RANK": lambda node: Result(node.const(node.rank(0), np.int32), stored=True),
    "BROADCAST_TO": lambda node: Result(node.emit("Expand", node.stored(0), node.int64(1)), stored=True),
    "TILE": lambda node: Result(node.emit("Tile", node.stored(0), node.int64(1)), stored=True),
    "FILL": lambda node: Result(node.emit("Expand", node.stored(1), node.int64(0)), stored=True),
    "RANGE": lambda node: Result(node.emit("Range", node.x(0), node.x(1), node.x(2))),
}.items():
    writes(_name)(_write)


@pairs
@writes("RESHAPE")
def reshape(node: Node) -> Result:
    """The new shape is an input, or an option of old files; -1 is what is left."""
    if node.has(1):
        sizes = node.int64(1)
        if node.tensor(0).is_complex:
            sizes = node.emit("Concat", sizes, node.sizes([2]), axis=0)
        # A size of 0 stands for itself here, where ONNX takes the input's.
        return Result(node.emit("Reshape", node.stored(0), sizes, allowzero=1), stored=True)
    if node.tensor(0).is_complex:
        raise Refused("expected the new shape of complex numbers as an input, found none")
    found = node.operator.options.get("new_shape")
    if not isinstance(found, tuple):
        raise Refused("expected a new shape, found none")
    return Result(node.emit("Reshape", node.stored(0), node.sizes([int(v) for v in found])), stored=True)


@writes("TRANSPOSE")
def transpose(node: Node) -> Result:
    perm = node.axes(1)
    if sorted(perm) != list(range(node.rank(0))):
        raise Refused(f"expected every one of {node.rank(0)} dimensions once, found {perm}")
    return Result(node.emit("Transpose", node.stored(0), perm=perm), stored=True)


@pairs
@writes("SQUEEZE")
def squeeze(node: Node) -> Result:
    found = node.operator.options.get("squeeze_dims") or ()
    sizes = node.shape(0)
    axes = [node.axis(int(a), len(sizes)) for a in found] if isinstance(found, tuple) else []
    axes = axes or [i for i, size in enumerate(sizes) if size == 1]
    return Result(node.emit("Squeeze", node.stored(0), node.sizes(axes)) if axes else node.stored(0), stored=True)


@pairs
@writes("EXPAND_DIMS")
def expand_dims(node: Node) -> Result:
    (axis,) = node.integers(1, "one axis")[:1] or [0]
    return Result(node.emit("Unsqueeze", node.stored(0), node.sizes([node.axis(axis, node.rank(0) + 1)])), stored=True)


@writes("BROADCAST_ARGS")
def broadcast_args(node: Node) -> Result:
    """The shape that two shapes broadcast to, both of one length."""
    if node.shape(0) != node.shape(1):
        raise Refused(f"expected shapes of one length, found {list(node.shape(0))} and {list(node.shape(1))}")
    return Result(node.emit("Max", node.stored(0), node.stored(1)), stored=True)


# Joined and cut. Parts of a tensor on a grid lie on that grid; the graph moves those that do not.


@writes("CONCATENATION")
def concatenation(node: Node) -> Result:
    rank = len(node.output().shape)
    axis = node.axis(node.option("axis"), rank)
    values, kind = operands(node)
    if kind is Channels:
        axis = {0: 0, rank - 1: 1}.get(axis, axis + 1)
    return kind(node.emit("Concat", *values, axis=axis))


@writes("PACK")
def pack(node: Node) -> Result:
    axis = node.axis(node.option("axis"), node.rank(0) + 1)
    rows = [node.emit("Unsqueeze", node.x(i), node.sizes([axis])) for i in range(node.count)]
    return Result(node.emit("Concat", *rows, axis=axis))


@writes("UNPACK")
def unpack(node: Node) -> tuple[Result, ...]:
    axis = node.axis(node.option("axis"), node.rank(0))
    parts = _split(node, node.stored(0), axis, [1] * len(node.operator.outputs))
    return tuple(Result(node.emit("Squeeze", p, node.sizes([axis])), stored=True) for p in parts)


@writes("SPLIT")
def split(node: Node) -> tuple[Result, ...]:
    """Inputs: axis, tensor."""
    (axis,) = node.integers(0, "one axis")[:1] or [0]
    axis, count = node.axis(axis, node.rank(1)), len(node.operator.outputs)
    size = node.shape(1)[axis]
    if size is not None and size % count:
        raise Refused(f"expected a size that {count} divides, found {size}")
    parts = node.emit_all("Split", [node.stored(1)], count, axis=axis, num_outputs=count)
    return tuple(Result(p, stored=True) for p in parts)


@writes("SPLIT_V")
def split_v(node: Node) -> tuple[Result, ...]:
    """Inputs: tensor, sizes of the parts (-1: what is left), axis."""
    (axis,) = node.integers(2, "one axis")[:1] or [0]
    axis, sizes = node.axis(axis, node.rank(0)), node.integers(1, "the sizes of the parts")
    whole = node.shape(0)[axis]
    if -1 in sizes and whole is not None:
        sizes[sizes.index(-1)] = whole - sum(s for s in sizes if s >= 0)
    if len(sizes) != len(node.operator.outputs) or min(sizes) < 0:
        raise Refused(f"expected {len(node.operator.outputs)} sizes of known parts, found {sizes}")
    return tuple(Result(p, stored=True) for p in _split(node, node.stored(0), axis, sizes))


def _split(node: Node, x: str, axis: int, sizes: list[int]) -> list[str]:
    return node.emit_all("Split", [x, node.sizes(sizes)], len(sizes), axis=axis)


@writes("SLICE")
def slice_(node: Node) -> Result:
    """Inputs: tensor, begins, sizes (-1: to the end)."""
    begins, sizes = node.int64(1), node.int64(2)
    known = node.known(2)
    if known is not None and node.known(1) is not None:
        starts = node.integers(1, "begins")
        ends = [(1 << 62) if s == -1 else b + s for b, s in zip(starts, node.integers(2, "sizes"))]
        end = node.sizes(ends)
    elif known is not None and (known >= 0).all():
        end = node.emit("Add", begins, sizes)
    else:
        rest = node.emit("Equal", sizes, node.sizes([-1]))
        end = node.emit("Where", rest, node.emit("Shape", node.stored(0)), node.emit("Add", begins, sizes))
    return Result(node.emit("Slice", node.stored(0), begins, end, node.sizes(list(range(node.rank(0))))), stored=True)


@writes("STRIDED_SLICE")
def strided_slice(node: Node) -> Result:
    """Inputs: tensor, begins, ends, strides; a bit of each mask for every place in them.

    An ellipsis is as many full dimensions as are left; a new axis takes no dimension of the tensor; a shrunken one is
    an index.
    """
    strides = node.integers(3, "strides")
    masks = {m: node.option(f"{m}_mask") for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    places, rank = len(strides), node.rank(0)
    begins, ends = (_numbers(node, i, places) for i in (1, 2))

    def has(mask: str, place: int) -> bool:
        return bool(masks[mask] >> place & 1)

    left = rank - sum(not has("new_axis", p) and not has("ellipsis", p) for p in range(places))
    starts: list[int | str] = []
    stops: list[int | str] = []
    steps: list[int] = []
    axes: list[int] = []
    new: list[int] = []
    gone: list[int] = []
    axis = made = 0
    for place in range(places):
        if has("ellipsis", place):
            axis, made, left = axis + left, made + left, 0
        elif has("new_axis", place):
            new.append(made)
            made += 1
        else:
            stride = strides[place]
            if axis >= rank or stride == 0:
                raise Refused(f"expected slices of {rank} dimensions with strides other than 0, found {strides}")
            if has("shrink_axis", place):
                start, stride = begins[place], 1
                stop = _after(node, start)
                gone.append(axis)
            else:
                start = (_LAST if stride < 0 else 0) if has("begin", place) else begins[place]
                stop = (-_LAST if stride < 0 else _LAST) if has("end", place) else ends[place]
                if node.flag("offset") and not has("end", place):
                    stop = _sum(node, begins[place], ends[place])
                made += 1
            starts, stops, steps, axes = [*starts, start], [*stops, stop], [*steps, stride], [*axes, axis]
            axis += 1
    x = node.stored(0)
    if axes:
        x = node.emit("Slice", x, _vector(node, starts), _vector(node, stops), node.sizes(axes), node.sizes(steps))
    x = node.emit("Squeeze", x, node.sizes(gone)) if gone else x
    return Result(node.emit("Unsqueeze", x, node.sizes(new)) if new else x, stored=True)


_LAST = 1 << 62  # behind every element


def _numbers(node: Node, i: int, count: int) -> list[int | str]:
    """The places in input `i`: numbers, or names of tensors of one element."""
    found = node.known(i)
    if found is not None:
        numbers = node.integers(i, "the places of a slice")
        if len(numbers) != count:
            raise Refused(f"expected {count} places of a slice, found {len(numbers)}")
        return list(numbers)
    whole = node.int64(i)
    return [node.emit("Slice", whole, node.sizes([p]), node.sizes([p + 1])) for p in range(count)]


def _sum(node: Node, a: int | str, b: int | str) -> int | str:
    return a + b if isinstance(a, int) and isinstance(b, int) else node.emit("Add", _single(node, a), _single(node, b))


def _single(node: Node, value: int | str) -> str:
    return node.sizes([value]) if isinstance(value, int) else value


def _after(node: Node, start: int | str) -> int | str:
    """Where a slice of one element from `start` ends; behind -1 lies the end."""
    if isinstance(start, int):
        return _LAST if start == -1 else start + 1
    after = node.emit("Add", start, node.sizes([1]))
    return node.emit("Where", node.emit("Equal", start, node.sizes([-1])), node.sizes([_LAST]), after)


def _vector(node: Node, values: list[int | str]) -> str:
    if all(isinstance(v, int) for v in values):
        return node.sizes([v for v in values if isinstance(v, int)])
    return node.emit("Concat", *(_single(node, v) for v in values), axis=0)


# Padded and rearranged.


@writes("PAD", "PADV2", "MIRROR_PAD")
def pad(node: Node) -> Result:
    """Inputs: tensor, widths [rank, 2], perhaps a value; a mirror repeats the edge with SYMMETRIC."""
    rank, widths = node.rank(0), node.known(1)
    if node.operator.name == "MIRROR_PAD":
        if node.option("mode"):
            raise Refused("expected the mode REFLECT, found SYMMETRIC")
        return Result(node.emit("Pad", node.x(0), _pads(node, rank, range(rank)), mode="reflect"))
    value = [node.x(2)] if node.operator.name == "PADV2" and node.has(2) else []
    if node.made_first(0) and widths is not None:
        order = [0, rank - 1, *range(1, rank - 1)]
        return Channels(node.emit("Pad", node.x(0, first=True), _pads(node, rank, order), *value))
    return Result(node.emit("Pad", node.x(0), _pads(node, rank, range(rank)), *value))


def _pads(node: Node, rank: int, order: Sequence[int]) -> str:
    """All widths in front, then all behind."""
    if node.known(1) is None:
        return node.emit("Reshape", node.emit("Transpose", node.int64(1), perm=[1, 0]), node.sizes([-1]))
    widths = node.integers(1, "widths")
    if len(widths) != 2 * rank:
        raise Refused(f"expected two widths for each of {rank} dimensions, found {len(widths)}")
    return node.sizes([widths[2 * d + side] for side in (0, 1) for d in order])


@writes("REVERSE_V2")
def reverse(node: Node) -> Result:
    axes = node.axes(1)
    ends = [node.sizes([v] * len(axes)) for v in (-1, -_LAST, -1)]
    return Result(node.emit("Slice", node.stored(0), *ends[:2], node.sizes(axes), ends[2]), stored=True)


@writes("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")
def depth(node: Node) -> Channels:
    """Blocks of pixels are channels, the block's place before the channel."""
    op = "SpaceToDepth" if node.operator.name == "SPACE_TO_DEPTH" else "DepthToSpace"
    return Channels(node.emit(op, node.x(0, first=True), blocksize=node.positive("block_size")[0]))


@writes("SPACE_TO_BATCH_ND")
def space_to_batch(node: Node) -> Result:
    """Padded by input 2, then blocks of pixels [block] become images of their own, the block's place outermost."""
    blocks, edges = node.integers(1, "blocks"), node.integers(2, "pads")
    rank, count = node.rank(0), len(blocks)
    _check_blocks(rank, blocks, edges)
    begins, ends = [0, *edges[::2]], [0, *edges[1::2]]
    rest = [0] * (rank - count - 1)
    x = node.emit("Pad", node.x(0), node.sizes([*begins, *rest, *ends, *rest]))
    shape = _with_one_unknown(node, x, blocks, rank, divide=True)
    x = node.emit("Reshape", x, shape)
    inner = [2 * i + 2 for i in range(count)]
    outer = [2 * i + 1 for i in range(count)]
    x = node.emit("Transpose", x, perm=[*inner, 0, *outer, *range(2 * count + 1, rank + count)])
    # [block.., n, sizes.., rest..] -> [n * blocks, sizes.., rest..]
    tail = node.emit("Shape", x, start=count + 1)
    return Result(node.emit("Reshape", x, node.emit("Concat", node.sizes([-1]), tail, axis=0)))


@writes("BATCH_TO_SPACE_ND")
def batch_to_space(node: Node) -> Result:
    """The way back of SPACE_TO_BATCH_ND: images of a block are its pixels, then the edges are cut off."""
    blocks, edges = node.integers(1, "blocks"), node.integers(2, "crops")
    rank, count = node.rank(0), len(blocks)
    _check_blocks(rank, blocks, edges)
    sizes = node.emit("Shape", node.x(0), start=1)
    x = node.emit("Reshape", node.x(0), node.emit("Concat", node.sizes([*blocks, -1]), sizes, axis=0))
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    x = node.emit("Transpose", x, perm=[*order, *range(2 * count + 1, rank + count)])
    shape = _with_one_unknown(node, node.x(0), blocks, rank, divide=False)
    x = node.emit("Reshape", x, shape)
    starts, stops = edges[::2], [-e if e else _LAST for e in edges[1::2]]
    return Result(node.emit("Slice", x, node.sizes(starts), node.sizes(stops), node.sizes(list(range(1, count + 1)))))


def _check_blocks(rank: int, blocks: list[int], edges: list[int]) -> None:
    if not blocks or rank < len(blocks) + 1 or min(blocks) < 1 or len(edges) != 2 * len(blocks) or min(edges) < 0:
        raise Refused(f"expected blocks of at least 1 with two edges each, found {blocks} and {edges}")


def _with_one_unknown(node: Node, x: str, blocks: list[int], rank: int, divide: bool) -> str:
    """The shape of `x` with its sizes divided by `blocks` and these behind them, or multiplied by `blocks`."""
    count = len(blocks)
    parts = [node.emit("Shape", x, start=0, end=1)] if divide else [node.sizes([-1])]
    for i, block in enumerate(blocks):
        size = node.emit("Shape", x, start=1 + i, end=2 + i)
        if divide:
            parts += [node.emit("Div", size, node.sizes([block])), node.sizes([block])]
        else:
            parts.append(node.emit("Mul", size, node.sizes([block])))
    if rank > count + 1:
        parts.append(node.emit("Shape", x, start=count + 1))
    return node.emit("Concat", *parts, axis=0)
