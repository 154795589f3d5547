"""Fourier transforms. Complex numbers are pairs of floats: a tensor has one more dimension than in the file.

Only operators that are marked here as ones of pairs get them (`_registry.pairs`); others refuse complex inputs.
"""

from __future__ import annotations

import numpy as np

from ._node import Node, Refused, Result
from ._registry import pairs, writes

_LONGEST = 1 << 16  # of a transform


@writes("RFFT2D")
def rfft2d(node: Node) -> Result:
    """x [.., rows, n] cut or padded to lengths (h, w) -> [.., h, w / 2 + 1]."""
    lengths = node.integers(1, "the lengths of a transform")
    if len(lengths) != 2 or not all(1 <= length <= _LONGEST for length in lengths):
        raise Refused(f"expected two lengths from 1 to {_LONGEST}, found {lengths}")
    height, width = (node.const(length, np.int64) for length in lengths)
    axis = node.rank(0) - 1
    pair = node.emit("Unsqueeze", node.x(0), node.sizes([axis + 1]))
    pair = node.emit("DFT", pair, width, node.const(axis, np.int64), onesided=1)
    if lengths[0] > 1 or node.shape(0)[-2] != 1:
        pair = node.emit("DFT", pair, height, node.const(axis - 1, np.int64))
    return Result(pair, stored=True)


@pairs
@writes("COMPLEX_ABS")
def complex_abs(node: Node) -> Result:
    return Result(node.emit("ReduceL2", node.stored(0), node.sizes([node.rank(0)]), keepdims=0))


@pairs
@writes("REAL")
def real(node: Node) -> Result:
    return Result(part_of(node, 0))


@pairs
@writes("IMAG")
def imag(node: Node) -> Result:
    return Result(part_of(node, 1))


def part_of(node: Node, place: int) -> str:
    """The real (0) or imaginary (1) parts of input 0."""
    return node.emit("Gather", node.stored(0), node.const(place, np.int64), axis=node.rank(0))
