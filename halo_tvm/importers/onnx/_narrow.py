"""Element types of less than a byte: one per byte inside the graph, integers as themselves, float4 as its code.

A tensor remembers its ONNX type; only conversions and (de)quantisation take it, every other operator refuses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tvm import relax, te

from ..meaning.constant import NARROW, numpy_dtype
from ._values import Tensor

if TYPE_CHECKING:
    from ._node import Node


def is_narrow(dtype: str) -> bool:
    return dtype in NARROW


def is_float(dtype: str) -> bool:
    return dtype.startswith("float4")


def stored_array(array: np.ndarray) -> np.ndarray:
    """An array of a narrow type with an element per byte, as graphs hold it."""
    kind = array.dtype.name
    return array.view(np.uint8) & 15 if is_float(kind) else array.astype(NARROW[kind])


def restored_array(array: np.ndarray, kind: str) -> np.ndarray:
    """The opposite of `stored_array`."""
    return array.view(numpy_dtype(kind)) if is_float(kind) else array.astype(numpy_dtype(kind))


def limits(kind: str) -> tuple[int, int]:
    """The smallest and the largest number of a narrow integer type."""
    bits = int(kind[-1])
    return (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decoded(node: Node, x: relax.Expr, kind: str) -> relax.Expr:
    """A stored tensor as int8 or uint8, float4 as float32."""
    if not is_float(kind):
        return x
    values = np.arange(16, dtype=np.uint8).view(numpy_dtype(kind)).astype(np.float32)

    def look_up(x: te.Tensor, table: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: table(x(*i).astype("int32")), name="decoded")

    return node.te(look_up, x, relax.const(values, "float32"), name="onnx_from_float4")


def wrapped(node: Node, x: relax.Expr, kind: str) -> Tensor:
    """int32 numbers as the narrow integer type `kind`: their lowest bits."""
    bits = int(kind[-1])
    low = node.emit(relax.op.bitwise_and(x, relax.const(2**bits - 1, "int32")))
    if not kind.startswith("u"):
        half = relax.const(2 ** (bits - 1), "int32")
        low = node.emit(relax.op.subtract(node.emit(relax.op.bitwise_xor(low, half)), half))
    return Tensor(node.emit(relax.op.astype(low, NARROW[kind])), kind)
