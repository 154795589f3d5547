"""QuantizeLinear of numbers that are known, by NumPy: fake-quantised exports hold their weights in floats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..meaning.constant import NARROW, Constant, numpy_dtype
from ._narrow import is_float, is_narrow, limits

if TYPE_CHECKING:
    from ._node import Node


def spread(v: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray:
    """Scales or zero points as an array that broadcasts to `shape`: one, one per slice along `axis`, or per block."""
    if v.size == 1:
        return v.reshape(())
    if not block:
        return v.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.take(np.repeat(v, block, axis=axis), np.arange(shape[axis]), axis=axis)


@dataclass(frozen=True)
class Grid:
    """What QuantizeLinear rounds to: scales and zero points, one, one per slice along `axis` or per block there."""

    scale: np.ndarray
    zero: np.ndarray | None
    axis: int
    block: int
    narrow: str  # the type that quotients are rounded to
    dtype: str
    saturate: bool  # a float of 8 bits

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """saturate(round(x / scale) + zero), halves to even; what is no number becomes the least integer."""
        scale = spread(self.scale.astype(np.float32), x.shape, self.axis, self.block)
        out = np.asarray(np.divide(x, scale, dtype=np.float32, casting="unsafe"))
        if self.narrow != "float32":
            out = out.astype(numpy_dtype(self.narrow)).astype(np.float32)
        if self.dtype.startswith("float"):
            return _float(out, self.dtype, self.saturate)
        np.rint(out, out=out)
        if self.zero is not None:
            out += spread(self.zero.astype(np.float32), x.shape, self.axis, self.block)
        info = np.iinfo(self.dtype) if not is_narrow(self.dtype) else None
        low, high = (info.min, info.max) if info else limits(self.dtype)
        np.nan_to_num(out, copy=False, nan=low, posinf=high, neginf=low)
        np.clip(out, low, high, out=out)
        return out.astype(NARROW.get(self.dtype, self.dtype)).astype(numpy_dtype(self.dtype), copy=False)


def rounded_when_read(node: Node, weight: Constant, grid: Grid) -> Constant | None:
    """`weight` on `grid`, computed each time it is read; None where the file asks for too much of that."""
    if not node.graph.budget.may_work_later(weight.reads * math.prod(weight.shape)):
        return None

    def load() -> np.ndarray:
        with np.errstate(all="ignore"):
            return grid.rounded(weight.load())

    return Constant(weight.shape, grid.dtype, load, weight.name or node.outputs[0], weight.reads)


def _float(x: np.ndarray, target: str, saturate: bool) -> np.ndarray:
    if saturate and not is_float(target):  # float4 has no infinity: its conversion saturates
        import ml_dtypes

        most = float(ml_dtypes.finfo(numpy_dtype(target)).max)
        x = np.clip(x, -most, most)
    return x.astype(numpy_dtype(target))
