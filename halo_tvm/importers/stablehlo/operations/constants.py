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
from .._operation import Operation, Value, dtype_of, operation


@operation("constant")
def constant(o: Operation) -> Value:
    held = o.program.constants
    if o.op not in held:
        held[o.op] = _array(o.op.attributes["value"], o.op.results[0].type)
    return held[o.op]


def _array(attribute: Any, kind: ir.Type) -> NDArray[Any]:
    """The array of `stablehlo.constant`."""
    shape, dtype = tuple(ir.RankedTensorType(kind).shape), dtype_of(kind)
    read: Callable[[Any], NDArray[Any]] = _of_text if dtype == ml_dtypes.bfloat16 else np.array
    if isinstance(attribute, ir.DenseElementsAttr):
        if attribute.is_splat:
            return np.broadcast_to(np.asarray(attribute.get_splat_value().value, dtype), shape)
        return np.asarray(read(attribute), dtype).reshape(shape)
    raise UnsupportedModel(
        f"expected constants written into the file, found {str(attribute)[:60]}: export them with it"
    )


def _of_text(attribute: Any) -> NDArray[Any]:
    """bfloat16, which MLIR's bindings do not hand over: from what it prints, numbers or bytes in hexadecimal."""
    text = str(attribute).partition("dense<")[2].rpartition(">")[0].rpartition(">")[0]
    if text.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(text[3:-1]), ml_dtypes.bfloat16)
    numbers = re.findall(r"0x[0-9A-F]+|-?\d[\d.]*(?:[eE][-+]?\d+)?", text)
    bits = [np.uint16(int(n, 16)).view(ml_dtypes.bfloat16) if n.startswith("0x") else n for n in numbers]
    return np.array([ml_dtypes.bfloat16(float(b)) for b in bits])
