"""Where a GPU's floats differ from NumPy's: the bits of a NaN that it computes, maxima with a NaN, rounding to tf32."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_NAN = {
    np.dtype(np.float32): np.uint32(0x7FFFFFFF).view(np.float32),
    np.dtype(np.float16): np.uint16(0x7FFF).view(np.float16),
    np.dtype(ml_dtypes.bfloat16): np.uint16(0x7FFF).view(ml_dtypes.bfloat16),
}
_HALF = np.uint32(0x1000)  # half a unit in the last place of tf32


def canonical(values: np.ndarray) -> np.ndarray:
    """`values` that an instruction computed: every NaN has the bits that NVIDIA gives it, whatever its operands'."""
    nan = _NAN.get(values.dtype)
    if nan is None:
        return values
    lost = np.isnan(values)
    return np.where(lost, nan, values) if lost.any() else values


def larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """max in CUDA: of a NaN and a number the number; of 16-bit floats, as TVM writes it, the second of such two."""
    return np.where(a > b, a, b) if _is_16_bit(a.dtype) else np.fmax(a, b)


def smaller(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min in CUDA, see `larger`."""
    return np.where(a < b, a, b) if _is_16_bit(a.dtype) else np.fmin(a, b)


def to_tf32(values: np.ndarray) -> np.ndarray:
    """cvt.rna.tf32.f32: float32 rounded to nearest at 11 bits, ties away from zero; a NaN stays one."""
    values = np.asarray(values, np.float32)
    rounded = ((values.view(np.uint32) + _HALF) & ~(2 * _HALF - np.uint32(1))).view(np.float32)
    return np.where(np.isnan(values), _NAN[values.dtype], rounded)


def _is_16_bit(dtype: np.dtype) -> bool:
    return dtype.itemsize == 2 and dtype in _NAN
