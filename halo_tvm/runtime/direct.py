"""Calls whose inputs are just as kernels need them, at a few microseconds each.

`bind_inputs` checks and converts anything; for a net of three small layers it would cost many times the kernels. What
a call repeats is known from the calls before: inputs of shapes and types that were once found right are right again,
small ones go to the same place, and what kernels are called with is then the same, too. Whatever is not known to be
right is left to the careful road, which also has the sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm_ffi

from ..artifact import FunctionSpec
from .inputs import check_values
from .owned import Outputs, OwnedOutputs
from .session import Session
from .tensors import aligned_empty, is_aligned, is_plain, numpy_dtype, to_tensor, unlocked

_SHAPES = 256  # sets of shapes that are remembered
_STAGED_BYTES = 16 << 10  # up to here a copy is cheaper than asking where an array lies
Shapes = tuple[tuple[int, ...], ...]
Staged = tuple[np.ndarray, tvm_ffi.Tensor]


class DirectCalls:
    """Runs of one function on inputs that are known to be right. Any thread may ask."""

    def __init__(self, spec: FunctionSpec, session: Session, owned: OwnedOutputs) -> None:
        self._session = session
        self._owned = owned
        self._alignment = spec.alignment
        self._names = tuple(t.name for t in spec.inputs)
        self._dtypes = tuple(numpy_dtype(t.dtype) for t in spec.inputs)
        self._bounded = tuple((i, t) for i, t in enumerate(spec.inputs) if t.values is not None)
        self._known: dict[Shapes, _Call] = {}
        self._plain = session.on_host and all(is_plain(t.dtype) for t in spec.inputs) and not spec.written

    def learn(self, arrays: Sequence[np.ndarray]) -> None:
        """`arrays` passed the careful checks: others of their shapes and types will."""
        if self._plain and all(a.size for a in arrays):
            if len(self._known) >= _SHAPES:
                self._known.clear()
            shapes = tuple(a.shape for a in arrays)
            self._known[shapes] = _Call(arrays, self._session, self._owned, self._alignment)

    def forget(self) -> None:
        """What was learned, which holds the library's function."""
        self._known.clear()

    def run(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Outputs | None:
        """Outputs of one run; None for a call that needs the careful road.

        Raises `InputError` for integers outside of their range.
        """
        if not kwargs:
            values = args
        elif args:
            return None
        else:
            values = []
            for name in self._names:
                values.append(kwargs.get(name))  # a comprehension is a call of its own in Python 3.11
        if len(values) != len(self._names) or len(kwargs) > len(values):
            return None
        shapes = []
        for value, dtype in zip(values, self._dtypes):
            if type(value) is not np.ndarray or (value.dtype is not dtype and value.dtype != dtype):
                return None
            shapes.append(value.shape)
        call = self._known.get(tuple(shapes))
        if call is None:
            return None
        for index, tensor in self._bounded:
            check_values(tensor, values[index])  # type: ignore[arg-type]
        return self._session.run_within(call, values)


class _Call:
    """One run on arrays of known shapes, with what gets them to the kernels; one at a time.

    What is staged is written by the next call, so outputs are the caller's own when this one ends.
    """

    def __init__(self, arrays: Sequence[np.ndarray], session: Session, owned: OwnedOutputs, alignment: int) -> None:
        self._alignment = alignment
        self._main, self._weights, self._owned = session.main, session.arguments, owned
        self._staged = [_stage(a) if a.nbytes <= _STAGED_BYTES else None for a in arrays]
        self._arrays = [s[0] for s in self._staged if s is not None]
        self._same = None not in self._staged  # every call has the same arguments
        self._tensors = tuple(s[1] for s in self._staged if s is not None)
        self._arguments = (*self._tensors, *self._weights)
        self._taken = frozenset(t.data_ptr() for t in self._tensors)

    def __call__(self, values: Sequence[np.ndarray]) -> Outputs:
        if self._same:
            for array, value in zip(self._arrays, values):
                array[...] = value
            return self._owned(self._main(*self._arguments), self._taken)
        tensors = [_place(value, staged, self._alignment) for value, staged in zip(values, self._staged)]
        return self._owned(self._main(*tensors, *self._weights), {t.data_ptr() for t in tensors})


def _stage(array: np.ndarray) -> Staged:
    place = aligned_empty(array.shape, array.dtype)
    return place, to_tensor(place)


def _place(value: np.ndarray, staged: Staged | None, alignment: int) -> tvm_ffi.Tensor:
    """`value` where kernels can read it: where it lies, or copied."""
    if staged is None:
        if value.flags.c_contiguous and is_aligned(value, alignment):
            return to_tensor(unlocked(value))
        staged = _stage(value)
    staged[0][...] = value
    return staged[1]
