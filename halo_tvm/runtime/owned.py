"""What a run returned, as arrays of the caller's own."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import tvm_ffi

from ..artifact import FunctionSpec
from .tensors import is_plain, leaves, to_array

Outputs = tuple[np.ndarray, ...]


class OwnedOutputs:
    """Outputs of runs of one function, which change neither with one another nor with anything else.

    A model may hand an input or a weight through, or one tensor as two outputs: such a tensor is copied. What is
    handed on whole or reshaped begins where the other does.
    """

    def __init__(self, spec: FunctionSpec, weights: np.ndarray) -> None:
        """`weights` is the memory they lie in, which the tensors keep."""
        start = weights.__array_interface__["data"][0]
        self._low, self._high = start, start + weights.nbytes
        self._convert = [np.from_dlpack if is_plain(t.dtype) else to_array for t in spec.outputs]

    def __call__(self, result: object, taken: Set[int]) -> Outputs:
        """The arrays of `result`; `taken` are the addresses of a run's inputs."""
        parts = (result,) if type(result) is tvm_ffi.Tensor else leaves(result)
        seen: Set[int] = taken if len(parts) == 1 else set(taken)
        outputs = []
        for leaf, convert in zip(parts, self._convert):
            if isinstance(leaf, np.ndarray):
                outputs.append(leaf)
                continue
            address, array = leaf.data_ptr(), convert(leaf)
            outputs.append(array.copy() if address in seen or self._low <= address < self._high else array)
            if seen is not taken:
                seen.add(address)
        return tuple(outputs)
