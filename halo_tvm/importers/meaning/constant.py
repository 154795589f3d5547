"""A tensor whose values are known while importing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

# Types of less than a byte -> the type that holds an element inside a graph.
NARROW = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8", "float4_e2m1fn": "uint8"}


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose values are known now; `load` reads them, so that large weights stay on disk until needed."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray] = field(repr=False)
    name: str = ""
    reads: int = 1  # tensors that `load` reads: what is computed of others reads theirs, each time

    @classmethod
    def of(cls, array: np.ndarray, name: str = "") -> Constant:
        return cls(array.shape, array.dtype.name, lambda: array, name)

    @cached_property
    def array(self) -> np.ndarray:
        return self.load()

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * numpy_dtype(self.dtype).itemsize


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's type of that name; ml_dtypes has what NumPy has not."""
    if dtype == "bfloat16" or dtype.startswith("float8") or dtype in NARROW:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype))
    return np.dtype(dtype)
