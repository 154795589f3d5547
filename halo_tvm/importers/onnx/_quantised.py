"""Floats that a file restores from integers: which integers they are, so that what reads them can take those.

y = DequantizeLinear(q, scale, zero) stands for q as well. Operators that only move elements move q too; a
QuantizeLinear by the same scale and zero point is q itself; products and convolutions (`in_integers`) multiply q.
Whatever needs the floats finds them: what nobody reads is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..meaning.builder import Refused
from ..meaning.constant import Constant
from ._folding import fold
from ._node import Node
from ._values import Tensor, Value

if TYPE_CHECKING:
    from collections.abc import Callable

# Operators whose result has elements of their first input, and nothing else, whatever the type.
_MOVES = frozenset(
    (
        "DepthToSpace Expand Flatten Gather Identity MaxPool Reshape Slice SpaceToDepth Squeeze Tile Transpose "
        "Unsqueeze"
    ).split()
)
_RESHAPES = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
_BYTES = ("int8", "uint8")


@dataclass(frozen=True, eq=False)
class Quantised:
    """(integers - zero) * scale in float32; scale and zero are one number, or one per slice along `axis`."""

    integers: Tensor | Constant
    scale: Constant
    zero: Constant | None
    axis: int = 0

    @property
    def zeros(self) -> np.ndarray:
        """The zero points, flat, in int32."""
        return np.zeros(1, np.int32) if self.zero is None else self.zero.array.astype(np.int32).reshape(-1)

    @property
    def scales(self) -> np.ndarray:
        return self.scale.array.reshape(-1)

    @property
    def of_tensor(self) -> bool:
        """Whether there is one scale and one zero point for all elements."""
        return self.scales.size == self.zeros.size == 1

    def same_grid(self, other: Quantised) -> bool:
        same = self.integers.dtype == other.integers.dtype and self.of_tensor and other.of_tensor
        return same and self.scales[0] == other.scales[0] and self.zeros[0] == other.zeros[0]


class QuantisedValues:
    """Which values of a graph stand for integers as well."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Value, Quantised]] = {}  # the value is kept, so that its id stays its own
        self._joined: dict[int, tuple[Value, Node]] = {}

    def of(self, value: Value | None) -> Quantised | None:
        known = self._known.get(id(value))
        return known and known[1]

    def joined(self, value: Value | None) -> Node | None:
        """The Concat that `value` is the result of, where each part stands for integers, but not all on one grid."""
        known = self._joined.get(id(value))
        return known and known[1]

    def follow(self, node: Node, results: Sequence[Value | None], convert: Callable[[Node], Sequence]) -> None:
        """Note what the results of `node` stand for; `convert` converts a node as the table of operators does."""
        if node.op == "DequantizeLinear":
            found = _restored_from(node)
        elif node.op in _MOVES:
            found = self._moved(node, convert)
        elif node.op == "Concat":
            found = self._on_one_grid(node, convert)
            if found is None and results[0] is not None and all(self.of(value) for value in node.inputs):
                self._joined[id(results[0])] = (results[0], node)
        else:
            return
        if found is not None and len(results) >= 1 and results[0] is not None:
            self._known[id(results[0])] = (results[0], found)

    def follow_known(self, node: Node, results: Sequence[Value | None]) -> None:
        """Note what the results of `node` stand for, which folding made of known floats: a weight in another layout."""
        source = self.of(node.inputs[0] if node.inputs else None)
        moves = node.op in _MOVES and node.op != "MaxPool"  # which folding leaves alone in integers
        if source is None or not moves or not isinstance(source.integers, Constant):
            return
        (result, *_), moved = results, fold(_on(node, [source.integers, *node.inputs[1:]]), "")
        axis = 0 if source.of_tensor or result is None else _axis_behind(node, source, result.shape)
        if moved is not None and isinstance(moved[0], Constant) and result is not None and axis is not None:
            self._known[id(result)] = (result, replace(source, integers=moved[0], axis=axis))

    def _moved(self, node: Node, convert: Callable[[Node], Sequence]) -> Quantised | None:
        source = self.of(node.inputs[0] if node.inputs else None)
        if source is None or not source.of_tensor or not isinstance(source.integers, Tensor):
            return None
        if node.op == "MaxPool" and not (source.scale.array > 0).all():  # the largest integer is the smallest number
            return None
        return _converted(node, [source.integers, *node.inputs[1:]], source, convert)

    def _on_one_grid(self, node: Node, convert: Callable[[Node], Sequence]) -> Quantised | None:
        parts = [self.of(value) for value in node.inputs]
        if not parts or any(p is None or not p.same_grid(parts[0]) for p in parts):
            return None
        return _converted(node, [p.integers for p in parts], parts[0], convert)


def _converted(
    node: Node, inputs: Sequence[Value | None], source: Quantised, convert: Callable[[Node], Sequence]
) -> Quantised | None:
    """`source` with the first result of `node` on `inputs`; None where the operator refuses integers."""
    try:
        moved = convert(_on(node, inputs))
    except Refused:
        return None
    return replace(source, integers=moved[0]) if isinstance(moved[0], Tensor | Constant) else None


def _on(node: Node, inputs: Sequence[Value | None]) -> Node:
    return Node(node.proto, node.graph, inputs, node.opset)


def _axis_behind(node: Node, source: Quantised, shape: Sequence[int]) -> int | None:
    """Which axis of the result, of `shape`, is that of the scales of `source`; None where that is none."""
    old = source.integers.shape
    if node.op == "Transpose":
        axes = list(node.attr("perm", list(reversed(range(len(old))))))
        return axes.index(source.axis) if source.axis in axes else None
    if node.op not in _RESHAPES:
        return None
    before, count = prod(old[: source.axis]), old[source.axis]
    return next((i for i, size in enumerate(shape) if size == count and prod(shape[:i]) == before), None)


def _restored_from(node: Node) -> Quantised | None:
    x, scale, zero = (node.inputs[i] if node.has(i) else None for i in range(3))
    known = isinstance(scale, Constant) and (zero is None or isinstance(zero, Constant))
    plain = isinstance(x, Tensor | Constant) and x.dtype in _BYTES and known and scale.dtype == "float32"
    if not plain or node.attr("block_size", 0) or node.attr("output_dtype", 1) != 1:
        return None
    axis, rank = int(node.attr("axis", 1)), len(x.shape)
    return Quantised(x, scale, zero, axis + rank if axis < 0 else axis)
