"""Sequences whose length is known while importing, and optional values: lists of values, none of it reaches Relax."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto
from tvm import relax

from ..meaning.sizes import Dim, prim
from ._node import Node
from ._registry import converter
from ._values import Sequence, Tensor, Value

_MOST = 4096  # elements of a sequence


def _items(node: Node, index: int = 0) -> tuple[Value, ...]:
    value = node.value(index)
    if not isinstance(value, Sequence):
        node.refuse(f"expected a sequence as input {index}, found a tensor")
    return value.items


def _made(node: Node, items: list[Value] | tuple[Value, ...]) -> Sequence:
    node.refuse_unless(len(items) <= _MOST, f"expected sequences of at most {_MOST} elements, found {len(items)}")
    return Sequence(tuple(items))


def _position(node: Node, index: int, length: int) -> int:
    """A position within a sequence; negative ones count from its end."""
    position = int(node.scalar(index))
    node.refuse_unless(-length <= position < length, f"position {position} lies outside the sequence of {length}")
    return position % length


for _name, _convert in {
    "SequenceConstruct": lambda node: _made(node, [node.value(i) for i in range(len(node.inputs))]),
    "SequenceEmpty": lambda node: Sequence(()),
    "SequenceLength": lambda node: np.array(len(_items(node)), np.int64),
    "OptionalHasElement": lambda node: np.array(node.has(0)),
}.items():
    converter(_name)(_convert)


@converter("SequenceAt")
def sequence_at(node: Node) -> Value:
    items = _items(node)
    return items[_position(node, 1, len(items))]


@converter("SequenceInsert")
def sequence_insert(node: Node) -> Sequence:
    """Before `position`; at the end where none is given."""
    items = list(_items(node))
    place = len(items)
    if node.has(2) and node.scalar(2) != place:
        place = _position(node, 2, len(items))
    items.insert(place, node.value(1))
    return _made(node, items)


@converter("SequenceErase")
def sequence_erase(node: Node) -> Sequence:
    """Without the element at `position`; the last where none is given."""
    items = list(_items(node))
    node.refuse_unless(bool(items), "the sequence is empty: nothing to erase")
    del items[_position(node, 1, len(items)) if node.has(1) else -1]
    return _made(node, items)


@converter("SequenceMap")
def sequence_map(node: Node) -> tuple[Sequence, ...]:
    """The body once per element; further sequences go along, tensors are the same for all."""
    body: GraphProto = node.attr("body")
    length = len(_items(node))
    node.refuse_unless(length <= _MOST, f"expected sequences of at most {_MOST} elements, found {length}")
    for value in node.inputs:
        if isinstance(value, Sequence):
            node.refuse_unless(
                len(value.items) == length, f"sequences of {length} and {len(value.items)} elements meet"
            )
    results = [
        node.graph.convert_graph(body, [v.items[i] if isinstance(v, Sequence) else v for v in node.inputs])
        for i in range(length)
    ]
    columns = zip(*results) if results else [() for _ in body.output]
    return tuple(Sequence(tuple(column)) for column in columns)


@converter("SplitToSequence")
def split_to_sequence(node: Node) -> Sequence:
    """Parts along an axis: of the given sizes, of one given size (the last may be smaller), or single rows."""
    shape = node.shape(0)
    axis = int(node.attr("axis", 0)) % max(len(shape), 1)
    sizes, is_kept = _sizes(node, shape[axis])
    node.refuse_unless(len(sizes) <= _MOST, f"expected sequences of at most {_MOST} elements, found {len(sizes)}")
    x, parts, begin = node.x(0), [], 0
    for size in sizes:
        end = node.sizes.simplify(prim(begin) + size)
        part = node.emit(relax.op.strided_slice(x, axes=[axis], begin=[begin], end=[end]))
        parts.append(Tensor(part if is_kept else node.emit(relax.op.squeeze(part, axis))))
        begin = end
    return Sequence(tuple(parts))


def _sizes(node: Node, length: Dim) -> tuple[list[Dim], bool]:
    """Sizes of the parts along an axis of `length`, and whether parts keep the axis."""
    if node.has(1) and node.rank(1) > 0:
        sizes = node.dims(1)
        total = node.sizes.simplify(sum(map(prim, sizes[1:]), prim(sizes[0])) if sizes else 0)
        node.refuse_unless(node.sizes.is_equal(total, length), f"expected parts of together {length}, found {total}")
        return sizes, True
    node.refuse_unless(isinstance(length, int), f"how many parts there are depends on the size {length} at run time")
    if not node.has(1):
        return [1] * length, bool(node.attr("keepdims", 1))
    size = int(node.scalar(1))
    node.refuse_unless(size > 0, f"expected parts of at least 1, found {size}")
    return [min(size, length - begin) for begin in range(0, length, size)], True


@converter("ConcatFromSequence")
def concat_from_sequence(node: Node) -> object:
    """All elements along an axis of theirs, or along a new one."""
    items = _items(node)
    node.refuse_unless(bool(items), "the sequence is empty: its elements' shape is not known")
    xs = [node.graph.expr_of(item) for item in items]
    rank = len(xs[0].ty.shape.values)
    is_new = bool(node.attr("new_axis", 0))
    axis = node.axis(node.attr("axis"), rank + is_new)
    if is_new:
        xs = [node.emit(relax.op.expand_dims(node.bind(x), axis)) for x in xs]
    if len(xs) == 1:
        return xs[0]
    return relax.op.concat(xs, axis)


@converter("Optional")
def optional(node: Node) -> Value | tuple[None]:
    """The value itself; an optional without value is None."""
    return node.inputs[0] if node.has(0) else (None,)


@converter("OptionalGetElement")
def optional_get_element(node: Node) -> Value:
    node.refuse_unless(node.has(0), "the optional value is absent")
    return node.value(0)
