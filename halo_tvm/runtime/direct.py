"""Calls whose inputs are just as kernels need them, at a few microseconds each.

`bind_inputs` checks and converts anything; for a net of three small layers it would cost many times the kernels. What
a call repeats is known from the calls before: inputs of shapes and types that were once found right are right again.
Whatever is not known to be right is left to the careful road, which also has the sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm_ffi

from ..artifact import FunctionSpec
from .inputs import check_values
from .tensors import ALIGNMENT, aligned_empty, is_plain, numpy_dtype, to_tensor

_SHAPES = 256  # sets of shapes that are remembered
_STAGED_BYTES = 16 << 10  # up to here a copy is cheaper than asking where an array lies
Shapes = tuple[tuple[int, ...], ...]


class DirectInputs:
    """What is known of the inputs of one function's calls.

    `tensors` serves one call at a time, until its outputs are the caller's own.
    """

    def __init__(self, spec: FunctionSpec) -> None:
        self._names = tuple(t.name for t in spec.inputs)
        self._dtypes = tuple(numpy_dtype(t.dtype) for t in spec.inputs)
        self._bounded = tuple((i, t) for i, t in enumerate(spec.inputs) if t.values is not None)
        self._known: set[Shapes] = set()
        self._staged: dict[tuple[int, tuple[int, ...]], tuple[np.ndarray, tvm_ffi.Tensor]] = {}
        self._plain = all(is_plain(t.dtype) for t in spec.inputs) and not spec.written

    def learn(self, arrays: Sequence[np.ndarray]) -> None:
        """`arrays` passed the careful checks: others of their shapes and types will."""
        if self._plain and all(a.size for a in arrays):
            if len(self._known) >= _SHAPES:
                self._known.clear()
                self._staged.clear()
            self._known.add(tuple(a.shape for a in arrays))

    def known(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[np.ndarray] | None:
        """The arrays of a call, in order, that are known to be right; None for a call that needs the careful road.

        Raises `InputError` for integers outside of their range. Any thread may ask.
        """
        if kwargs:
            if args or len(kwargs) != len(self._names):
                return None
            values = [kwargs.get(name) for name in self._names]
        elif len(args) != len(self._names):
            return None
        else:
            values = list(args)
        shapes = []
        for value, dtype in zip(values, self._dtypes):
            if type(value) is not np.ndarray or value.dtype != dtype:
                return None
            shapes.append(value.shape)
        if tuple(shapes) not in self._known:
            return None
        for index, tensor in self._bounded:
            check_values(tensor, values[index])
        return values

    def tensors(self, arrays: Sequence[np.ndarray]) -> list[tvm_ffi.Tensor]:
        """`arrays` where kernels can read them. Small ones are copied to a place that the next call uses again."""
        return [self._tensor(index, array) for index, array in enumerate(arrays)]

    def _tensor(self, index: int, value: np.ndarray) -> tvm_ffi.Tensor:
        if value.nbytes > _STAGED_BYTES and value.flags.c_contiguous and value.flags.writeable:
            tensor = tvm_ffi.from_dlpack(value)
            if tensor.data_ptr() % ALIGNMENT == 0:
                return tensor
        key = (index, value.shape)
        staged = self._staged.get(key)
        if staged is None:
            array = aligned_empty(value.shape, value.dtype)
            staged = array, to_tensor(array)
            if value.nbytes <= _STAGED_BYTES:
                self._staged[key] = staged
        staged[0][...] = value
        return staged[1]
