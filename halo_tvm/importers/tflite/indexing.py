"""Elements chosen by indices, and written to them."""

from __future__ import annotations

import numpy as np

from ._node import Node, Refused, Result
from ._registry import writes
from .elementwise import onnx_type


@writes("GATHER")
def gather(node: Node) -> Result:
    """Along `axis`; with `batch_dims` the first dimensions of tensor and indices go together."""
    batch, rank = node.option("batch_dims"), node.rank(0)
    axis = node.axis(node.option("axis"), rank)
    if batch < 0:
        batch += node.rank(1)
    if not batch:
        return Result(node.emit("Gather", node.stored(0), node.stored(1), axis=axis), stored=True)
    if axis != batch or node.rank(1) < batch:
        raise Refused(f"expected the axis behind {batch} dimensions of batches, found {axis}")
    places = node.emit("Unsqueeze", node.int64(1), node.sizes([-1]))
    return Result(node.emit("GatherND", node.stored(0), places, batch_dims=batch), stored=True)


@writes("EMBEDDING_LOOKUP")
def embedding_lookup(node: Node) -> Result:
    """Inputs: rows, table."""
    return Result(node.emit("Gather", node.x(1), node.stored(0), axis=0))


@writes("GATHER_ND")
def gather_nd(node: Node) -> Result:
    return Result(node.emit("GatherND", node.stored(0), node.int64(1)), stored=True)


@writes("SCATTER_ND")
def scatter_nd(node: Node) -> Result:
    """Inputs: places, updates, shape of the result; updates of one place are added."""
    zeros = node.emit("Expand", node.const(0, np.dtype(node.output().dtype)), node.int64(2))
    return Result(node.emit("ScatterND", zeros, node.int64(0), node.x(1), reduction="add"))


@writes("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(node: Node) -> Result:
    """`update` written into the tensor from `starts` on, which are moved so that it fits."""
    room = node.emit("Sub", node.emit("Shape", node.stored(0)), node.emit("Shape", node.stored(1)))
    starts = node.emit("Max", node.emit("Min", node.int64(2), room), node.sizes([0]))
    x, rank = node.stored(0), node.rank(0)
    if node.rank(1) != rank or not rank:
        raise Refused(f"expected an update of {rank} dimensions, found {node.rank(1)}")
    # Where the update lies: the index of each of its elements along each dimension, from `starts` on.
    sizes = node.emit("Shape", node.stored(1))
    places = []
    for axis in range(rank):
        start = node.emit("Squeeze", node.emit("Slice", starts, node.sizes([axis]), node.sizes([axis + 1])))
        size = node.emit("Squeeze", node.emit("Slice", sizes, node.sizes([axis]), node.sizes([axis + 1])))
        steps = node.emit("Range", node.const(0, np.int64), size, node.const(1, np.int64))
        along = node.emit("Reshape", node.emit("Add", steps, start), node.sizes([-1] + [1] * (rank - 1 - axis)))
        places.append(node.emit("Unsqueeze", node.emit("Expand", along, sizes), node.sizes([-1])))
    where = node.emit("Concat", *places, axis=-1)
    return Result(node.emit("ScatterND", x, where, node.stored(1)), stored=True)


@writes("ONE_HOT")
def one_hot(node: Node) -> Result:
    """Inputs: indices, depth, the value at the index and the one elsewhere. A negative index is hot nowhere."""
    depth, indices = node.int64(1), node.int64(0)
    indices = node.emit("Where", node.emit("Less", indices, node.const(0, np.int64)), depth, indices)
    values = node.emit("Concat", *(node.emit("Reshape", node.x(i), node.sizes([1])) for i in (3, 2)), axis=0)
    return Result(node.emit("OneHot", indices, depth, values, axis=node.option("axis")))


@writes("TOPK_V2")
def top_k(node: Node) -> tuple[Result, ...]:
    count = node.emit("Reshape", node.int64(1), node.sizes([1]))
    values, places = node.emit_all("TopK", [node.x(0), count], 2, axis=-1)
    return Result(values), Result(node.emit("Cast", places, to=onnx_type(node.output(1).dtype)), stored=True)


@writes("WHERE")
def where(node: Node) -> Result:
    """The places of what is not 0, one in each row."""
    return Result(node.emit("Transpose", node.emit("NonZero", node.x(0)), perm=[1, 0]), stored=True)


@writes("REVERSE_SEQUENCE")
def reverse_sequence(node: Node) -> Result:
    axes = {"time_axis": node.option("seq_dim"), "batch_axis": node.option("batch_dim")}
    return Result(node.emit("ReverseSequence", node.x(0), node.int64(1), **axes))


@writes("UNIQUE")
def unique(node: Node) -> tuple[Result, ...]:
    """In the order of their first places."""
    values, _first, places = node.emit_all("Unique", [node.x(0)], 3, sorted=0)
    return Result(values), Result(node.emit("Cast", places, to=onnx_type(node.output(1).dtype)), stored=True)
