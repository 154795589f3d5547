"""Scores that fall with the distance of a key, by head: the linear biases of arXiv:2108.12409."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from ..builder import ModelBuilder
from .config import Alibi, DecoderConfig

CAPACITY_STEP = 16  # capacities of several slots are multiples of it, and may exceed the positions up to the next one


def bias(c: DecoderConfig, m: ModelBuilder, keys: tvm.ir.Expr | int, how: Alibi) -> relax.Var:
    """The bias [1, heads, 1, keys]: slope times key position.

    The distance to the query differs from it by a number of the query's own, which softmax does not see.
    """
    power = 2 ** int(np.floor(np.log2(c.heads)))
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    if power != c.heads:  # the missing ones lie between those of the next power of two
        slopes = np.concatenate([slopes, 2.0 ** (-4.0 / power * np.arange(1, 2 * (c.heads - power), 2))])
    if how.rounded:  # products, too: no product of float32 at run time
        places = np.arange(-(-c.positions // CAPACITY_STEP) * CAPACITY_STEP)
        table = _rounded(_rounded(slopes)[:, None] * places) * how.scale
        whole = relax.const(table.astype(np.float32)[None, :, None])
        return m.emit(relax.op.strided_slice(whole, axes=[3], begin=[0], end=[keys]))
    at = m.emit(relax.op.astype(m.emit(relax.op.arange(0, keys, 1, "int64")), "float32"))
    at = m.emit(relax.op.reshape(at, (1, 1, 1, keys)))
    slopes = (slopes * how.scale).astype(np.float32)
    return m.emit(relax.op.multiply(relax.const(slopes.reshape(1, -1, 1, 1)), at))


def _rounded(values: np.ndarray) -> np.ndarray:
    """To the nearest bfloat16, of two equally near the even one."""
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
