"""Matrix products."""

from __future__ import annotations

import numpy as np

from ._dynamic import is_dynamic, restored, rounded
from ._node import Node, Refused, Result
from ._registry import writes


@writes("FULLY_CONNECTED")
def fully_connected(node: Node) -> Result:
    """x [.., k] by weights [n, k]; x is rows of k whatever its rank, and keeps its rank with `keep_num_dims`."""
    weight = node.shape(1)
    if len(weight) != 2 or weight[1] is None:
        raise Refused(f"expected weights of known sizes [n, k], found {list(weight)}")
    if node.option("weights_format"):
        raise Refused("expected weights in rows, found them shuffled")
    x, rank = node.x(0), node.rank(0)
    keeps = node.flag("keep_num_dims") and rank > 0 and node.shape(0)[-1] == weight[1]
    if not keeps and (rank != 2 or node.shape(0)[-1] != weight[1]):
        x = node.emit("Reshape", x, node.sizes([-1, weight[1]]))
    if is_dynamic(node):
        rows = rounded(node, x, [-1])
        total = node.emit("MatMulInteger", rows.levels, node.emit("Transpose", node.stored(1), perm=[1, 0]))
        out = restored(node, total, rows, node.constant(1, "weights").sum(1, dtype=np.int32), 0)
    else:
        out = node.emit("MatMul", x, node.permuted(1, [1, 0]))
    return Result(node.emit("Add", out, node.x(2)) if node.has(2) else out)


@writes("BATCH_MATMUL")
def batch_matmul(node: Node) -> Result:
    return Result(node.emit("MatMul", _turned(node, 0, "adj_x"), _turned(node, 1, "adj_y")))


def _turned(node: Node, i: int, flag: str) -> str:
    if not node.flag(flag):
        return node.x(i)
    rank = node.rank(i)
    if rank < 2:
        raise Refused(f"expected matrices, found {rank} dimensions")
    return node.emit("Transpose", node.x(i), perm=[*range(rank - 2), rank - 1, rank - 2])
