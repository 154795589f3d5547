"""NumPy arrays <-> TVM tensors without copies, also for dtypes DLPack knows and NumPy does not."""

from __future__ import annotations

import functools
import math

import numpy as np
import tvm_ffi

from ..errors import ArtifactCorrupt, MissingPackage

# TVM's own tensors start at a multiple of this, and so do ours: no load of a vector crosses two lines of the caches.
ALIGNMENT = 64
_REGISTERED = 2  # `isbuiltin` of a type that another package gives NumPy; of NumPy's own it is 1, or 0 behind a pickle
_BITS: dict[int, np.dtype] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of that name; bfloat16 and float8 come from ml_dtypes, `MissingPackage` without it."""
    try:
        return np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes  # only models with such weights or outputs need it
        except ImportError:
            raise MissingPackage("ml_dtypes", f"an array of {name}", "pip install ml_dtypes") from None
        if not hasattr(ml_dtypes, name):
            raise ArtifactCorrupt(
                f"expected a type of elements that NumPy or ml_dtypes has, found {name[:80]!r}; compile the model again"
            ) from None
        extended: np.dtype = np.dtype(getattr(ml_dtypes, name))
        return extended


def is_plain(dtype: str) -> bool:
    """Whether NumPy has the type itself, so that DLPack hands it over as it is."""
    try:
        return is_numpys(np.dtype(dtype))
    except TypeError:
        return False


def is_numpys(dtype: np.dtype) -> bool:
    """Whether a type is NumPy's own, also where a pickle made another object of it."""
    return dtype.kind != "V" and dtype.isbuiltin != _REGISTERED


def is_aligned(array: np.ndarray, alignment: int = ALIGNMENT) -> bool:
    """Whether `array` starts at a multiple of `alignment` bytes, and its elements where those of their type may."""
    address: int = array.__array_interface__["data"][0]  # half the time of array.ctypes.data
    return array.flags.aligned and address % alignment == 0


class _Bytes:
    """Those of a dense array, which it keeps alive."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        place = (array.__array_interface__["data"][0], False)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (array.nbytes,), "data": place}


def unlocked(array: np.ndarray) -> np.ndarray:
    """Dense `array`, for who only reads it, in a form that DLPack takes: not marked as one that must not be written."""
    if array.flags.writeable:
        return array
    return np.asarray(_Bytes(array)).view(array.dtype).reshape(array.shape)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `numpy.empty`, at a multiple of `ALIGNMENT`."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def is_complex(dtype: str) -> bool:
    """Whether kernels know arrays of this type as pairs of real numbers."""
    return dtype in ("complex64", "complex128")


def as_pairs(array: np.ndarray) -> np.ndarray:
    """Complex numbers as their real and imaginary parts along a last axis, in the same memory; others as they are."""
    if array.dtype.kind != "c":
        return array
    dense = np.ascontiguousarray(array).reshape(array.shape)
    return dense[..., None].view(dense.real.dtype)


def as_complex(pairs: np.ndarray) -> np.ndarray:
    """What `as_pairs` undoes, in the same memory."""
    return pairs.view(np.result_type(pairs.dtype, np.complex64))[..., 0]


def to_tensor(array: np.ndarray) -> tvm_ffi.Tensor:
    """A tensor over the memory of `array`, which must be contiguous, aligned and writable; it keeps it alive."""
    array = as_pairs(array)
    if array.size == 0:  # NumPy's strides of nothing are not those that kernels check for
        return view(tvm_ffi.from_dlpack(np.zeros(1, np.uint8)), array.shape, str(array.dtype))
    if is_numpys(array.dtype):
        return tvm_ffi.from_dlpack(array)
    return view_bytes(array.view(_BITS[array.dtype.itemsize]), array.shape, str(array.dtype))


def view_bytes(bits: np.ndarray, shape: tuple[int, ...], dtype: str) -> tvm_ffi.Tensor:
    """A tensor of `dtype` over an array of unsigned integers of the same width."""
    return view(tvm_ffi.from_dlpack(bits), shape, dtype)


def to_array(tensor: tvm_ffi.Tensor) -> np.ndarray:
    """An array over the memory of `tensor`, which it keeps alive."""
    dtype = str(tensor.dtype)
    if dtype != "bfloat16" and not dtype.startswith("float8"):
        return np.from_dlpack(tensor)
    target = numpy_dtype(dtype)
    return np.from_dlpack(view(tensor, tuple(tensor.shape), str(_BITS[target.itemsize]))).view(target)


def to_arrays(result: object) -> list[np.ndarray]:
    """What a run returned as arrays: a tensor, an array of results, a shape or a number."""
    return [to_array(leaf) if isinstance(leaf, tvm_ffi.Tensor) else leaf for leaf in leaves(result)]


def leaves(result: object) -> list[tvm_ffi.Tensor | np.ndarray]:
    """The tensors that a run returned, results inside results opened; a shape or a number is an array."""
    if isinstance(result, tvm_ffi.Tensor):
        return [result]
    if isinstance(result, tvm_ffi.Shape):
        return [np.array(tuple(result), np.int64)]
    if isinstance(result, (bool, int, float)):
        return [np.array(result)]
    return [leaf for part in result for leaf in leaves(part)]  # type: ignore[attr-defined]


def view(tensor: tvm_ffi.Tensor, shape: tuple[int, ...], dtype: str) -> tvm_ffi.Tensor:
    """The beginning of the memory of `tensor` as another shape and dtype; it keeps the memory alive."""
    create_view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    viewed: tvm_ffi.Tensor = create_view(tensor, tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), 0)
    return viewed
