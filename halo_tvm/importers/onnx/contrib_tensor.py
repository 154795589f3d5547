"""Operators of onnxruntime that ONNX has too, or had no name for: ranges, pads, axes, distances."""

from __future__ import annotations

import numpy as np
from tvm import relax, te

from ..meaning.broadcast import same_sizes
from ..meaning.builder import expr_shape
from ..meaning.constant import Constant
from . import padding
from ._node import Node
from ._registry import converter
from ._values import Tensor
from .shape import arange

_MS = "com.microsoft"
_PADS_AS_INPUT = 13  # the opset whose Pad this one is


@converter("Range", domain=_MS)
def contrib_range(node: Node) -> relax.Expr:
    """start, start + delta, ... below limit; delta is 1 where it is not given."""
    delta = node.inputs[2] if node.has(2) else Constant.of(np.ones((), node.dtype(0)))
    return arange(Node(node.proto, node.graph, [*node.inputs[:2], delta], node.opset))


@converter("Pad", domain=_MS)
def contrib_pad(node: Node) -> relax.Expr:
    """Pad of ONNX since it takes pads as an input, here [2 * rank] or [1, 2 * rank]."""
    inputs = list(node.inputs)
    if isinstance(node.value(1), Tensor):
        inputs[1] = Tensor(node.reshape(node.x(1), [node.sizes.product(node.shape(1))]))
    return padding.pad(Node(node.proto, node.graph, inputs, _PADS_AS_INPUT))


@converter("ExpandDims", domain=_MS)
def expand_dims(node: Node) -> relax.Expr:
    axis, rank = int(node.scalar(1)), node.rank(0)
    node.refuse_unless(-rank - 1 <= axis <= rank, f"expected an axis from {-rank - 1} to {rank}, found {axis}")
    return relax.op.expand_dims(node.x(0), axis)


@converter("CDist", domain=_MS)
def distances(node: Node) -> relax.Expr:
    """[m, n]: the distance, or its square, of each row of A [m, k] from each of B [n, k]."""
    metric = node.attr("metric", "sqeuclidean")
    known = metric in ("euclidean", "sqeuclidean")
    node.refuse_unless(known, f"expected the metric euclidean or sqeuclidean, found {metric}")
    node.refuse_unless(
        node.rank(0) == node.rank(1) == 2, f"expected matrices, found ranks {node.rank(0)}, {node.rank(1)}"
    )
    a = node.x(0)
    b = same_sizes(node, node.x(1), [node.shape(1)[0], expr_shape(a)[1]], "rows of B")

    def squares(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, a.shape[1]), "k")
        # Of the differences: |a|^2 + |b|^2 - 2ab loses the digits of what lies close together.
        return te.compute(
            (a.shape[0], b.shape[0]),
            lambda i, j: te.sum((a[i, k] - b[j, k]) * (a[i, k] - b[j, k]), axis=k),
            name="cdist",
        )

    square = node.te(squares, a, b, name="onnx_cdist")
    return relax.op.sqrt(square) if metric == "euclidean" else square
