"""What a run returned, as arrays of the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np
import tvm_ffi

from ..artifact import FunctionSpec
from .tensors import as_complex, is_complex, is_plain, leaves, to_array

Outputs = tuple[np.ndarray, ...]


def _converter(dtype: str) -> Callable[[tvm_ffi.Tensor], np.ndarray]:
    if is_complex(dtype):
        return lambda tensor: as_complex(to_array(tensor))
    return np.from_dlpack if is_plain(dtype) else to_array


class OwnedOutputs:
    """Outputs of runs of one function, which change neither with one another nor with anything else.

    A model may hand an input or a weight through, or one tensor as two outputs: such a tensor is copied. What is
    handed on whole or reshaped begins where the other does.
    """

    def __init__(self, spec: FunctionSpec, weights: np.ndarray) -> None:
        """`weights` is the memory they lie in, which the tensors keep."""
        start = weights.__array_interface__["data"][0]
        self._low, self._high = start, start + weights.nbytes
        self._convert = [_converter(t.dtype) for t in spec.outputs]

    def __call__(self, result: object, taken: Set[int]) -> Outputs:
        """The arrays of `result`; `taken` are the addresses of a run's inputs."""
        if type(result) is tvm_ffi.Tensor:
            return (self._array(result, self._convert[0], taken),)
        outputs, seen = [], set(taken)
        for leaf, convert in zip(leaves(result), self._convert):
            if isinstance(leaf, tvm_ffi.Tensor):
                outputs.append(self._array(leaf, convert, seen))
                seen.add(leaf.data_ptr())
            else:
                outputs.append(leaf)
        return tuple(outputs)

    def _array(
        self, tensor: tvm_ffi.Tensor, convert: Callable[[tvm_ffi.Tensor], np.ndarray], taken: Set[int]
    ) -> np.ndarray:
        address, array = tensor.data_ptr(), convert(tensor)
        return array.copy() if address in taken or self._low <= address < self._high else array
