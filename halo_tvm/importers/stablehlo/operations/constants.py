"""Numbers that are written into the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from numpy.typing import NDArray

from ....errors import UnsupportedModel
from .._operation import Operation, Value, operation


@operation("constant")
def constant(o: Operation) -> Value:
    held = o.program.constants
    if o.op not in held:
        shape, dtype = tuple(ir.RankedTensorType(o.op.results[0].type).shape), o.dtype
        # MLIR's bindings have no attribute of complex numbers, even to look at.
        held[o.op] = _complex(str(o.op), shape) if dtype.kind == "c" else _array(o.op.attributes["value"], shape, dtype)
    return held[o.op]


def _array(attribute: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array of `stablehlo.constant`."""
    read: Callable[[Any], NDArray[Any]] = _of_text if dtype == ml_dtypes.bfloat16 else np.array
    if isinstance(attribute, ir.DenseElementsAttr):
        if attribute.is_splat:
            return np.broadcast_to(np.asarray(attribute.get_splat_value().value, dtype), shape)
        return np.asarray(read(attribute), dtype).reshape(shape)
    raise UnsupportedModel(
        f"expected constants written into the file, found {str(attribute)[:60]}: export them with it"
    )


def _numbers(text: str) -> str:
    """What MLIR prints between `dense<` and `> : tensor<`: numbers, or bytes in hexadecimal."""
    return text.partition("dense<")[2].rpartition("> : tensor<")[0]


def _complex(operation: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Complex numbers from what MLIR prints of their operation."""
    text = _numbers(operation)
    if text.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(text[3:-1]), np.complex64).reshape(shape)
    parts = re.findall(r"0x[0-9A-F]+|-?\d[\d.]*(?:[eE][-+]?\d+)?", text)
    real = [np.uint32(int(n, 16)).view(np.float32) if n.startswith("0x") else np.float32(n) for n in parts]
    found = np.array(real, np.float32).view(np.complex64)
    return np.broadcast_to(found[0], shape) if found.size == 1 else found.reshape(shape)


def _of_text(attribute: Any) -> NDArray[Any]:
    """bfloat16, which MLIR's bindings do not hand over, from what it prints."""
    text = _numbers(str(attribute))
    if text.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(text[3:-1]), ml_dtypes.bfloat16)
    numbers = re.findall(r"0x[0-9A-F]+|-?\d[\d.]*(?:[eE][-+]?\d+)?", text)
    bits = [np.uint16(int(n, 16)).view(ml_dtypes.bfloat16) if n.startswith("0x") else n for n in numbers]
    return np.array([ml_dtypes.bfloat16(float(b)) for b in bits])
