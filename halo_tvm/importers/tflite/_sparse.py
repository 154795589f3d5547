"""Sparse tensors of a TFLite file as dense ones.

A tensor is stored as levels in `traversal_order`: its own dimensions, then those of blocks within them (`block_map`
says of which). A dense level has every index; a sparse one has, for each parent, a segment of an array of indices.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._flatbuffer import Malformed, Table

_INDEX_TYPES = {1: np.int32, 2: np.uint16, 3: np.uint8}
_MOST_BYTES = 1 << 31  # of one tensor written out


def dense(table: Table, raw: NDArray[np.uint8], kind: str, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """The tensor `name` of `shape`, whose values that are stored are `raw`, with zeros elsewhere."""
    order, blocks = table.integers(0), table.integers(1)
    levels = table.tables(2)
    rank = len(shape)
    if sorted(order) != list(range(len(levels))) or len(levels) != rank + len(blocks):
        raise Malformed(f"an order of dimensions {list(order)[:10]} for the sparse {name!r}")
    if any(not 0 <= b < rank for b in blocks) or kind not in ("float32", "float16", "int8"):
        raise Malformed(f"blocks of the sparse {name!r} over dimensions {list(blocks)[:10]} in {kind}")
    dtype = np.dtype(kind)
    if math.prod(shape) * dtype.itemsize > _MOST_BYTES or raw.size % dtype.itemsize:
        raise Malformed(f"{raw.size} bytes for the sparse {name!r} of shape {list(shape)}")
    values = raw.view(dtype)
    sizes = [level.integer(1, "i") for level in levels]
    parents = np.zeros((1, 0), np.int64)  # one row for each entry so far, one column for each level passed
    for position, level in enumerate(levels):
        if level.integer(0, "b") == 0:
            count = _dense_size(sizes[position], len(parents), values.size, name)
            new = np.tile(np.arange(count), len(parents))
            parents = np.column_stack([np.repeat(parents, count, axis=0), new])
        else:
            parents = _children(level, parents, values.size, name)
    if len(parents) != values.size:
        raise Malformed(f"{values.size} values for {len(parents)} places of the sparse {name!r}")
    by_dimension = np.empty_like(parents)
    by_dimension[:, list(order)] = parents
    extent = {int(order[p]): sizes[p] for p in range(len(levels))}
    index = [by_dimension[:, d].copy() for d in range(rank)]
    for number, dimension in enumerate(blocks):
        index[dimension] = index[dimension] * extent[rank + number] + by_dimension[:, rank + number]
    if any(len(i) and (i.min() < 0 or i.max() >= size) for i, size in zip(index, shape)):
        raise Malformed(f"an index outside of the sparse {name!r} of shape {list(shape)}")
    out = np.zeros(shape, dtype)
    out[tuple(index)] = values
    return out


def _dense_size(size: int, parents: int, values: int, name: str) -> int:
    if size < 0 or size * parents > max(1, values):
        raise Malformed(f"a dense dimension of {size} below {parents} entries of the sparse {name!r}")
    return size


def _children(level: Table, parents: NDArray[np.int64], values: int, name: str) -> NDArray[np.int64]:
    segments, indices = (_indices(level, slot, name) for slot in (2, 4))
    if len(segments) != len(parents) + 1 or (np.diff(segments) < 0).any() or segments[0] != 0:
        raise Malformed(f"{len(segments)} segments below {len(parents)} entries of the sparse {name!r}")
    if segments[-1] != len(indices) or len(indices) > values:
        raise Malformed(f"{len(indices)} indices of the sparse {name!r}, of which {segments[-1]} are used")
    return np.column_stack([np.repeat(parents, np.diff(segments), axis=0), indices])


def _indices(level: Table, slot: int, name: str) -> NDArray[np.int64]:
    table, kind = level.table(slot + 1), level.integer(slot, "B")
    found = table.array(0, _INDEX_TYPES[kind]) if table and kind in _INDEX_TYPES else None
    if found is None:
        raise Malformed(f"a sparse dimension without indices in {name!r}")
    return found.astype(np.int64)
