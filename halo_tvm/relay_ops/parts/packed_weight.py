"""Weights packed into panels: [chunks, panels, kc, nr], or [chunks, panels, kc / g, nr, g] in groups along k."""

from __future__ import annotations

import numpy as np
from tvm import ir, te


def packed_at(weight: te.Tensor, k: ir.Expr, panel: ir.Expr, lane: ir.Expr) -> ir.Expr:
    """Row `k` of the column that is `lane` of `panel`."""
    group = int(weight.shape[4]) if len(weight.shape) == 5 else 1
    kc = int(weight.shape[2]) * group
    chunk, depth = (0, k) if int(weight.shape[0]) == 1 else (k // kc, k % kc)
    if group == 1:
        return weight[chunk, panel, depth, lane]
    return weight[chunk, panel, depth // group, lane, depth % group]


def unpacked(weight: np.ndarray, n: int) -> np.ndarray:
    """The matrix [k, n] that `weight` was made of."""
    order = (0, 2, 1, 3) if weight.ndim == 4 else (0, 2, 4, 1, 3)
    return weight.transpose(order).reshape(-1, weight.shape[1] * weight.shape[3])[:, :n]
