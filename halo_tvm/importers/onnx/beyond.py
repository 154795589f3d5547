"""Functions of elements that ONNX has no operator for: in a domain of ours, for importers that write ONNX graphs.

FloorDiv                  of integers, rounded down
Expm1, Log1p              to the last digits of small numbers
Erfc                      of large numbers to its own last digits, where 1 - Erf is 0
Lgamma, Digamma, Erfinv, NextAfter

LSTM of bounded cells stands in `recurrent`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax, tirx

from ...division import floor_divide
from ..meaning import special
from ..meaning.pointwise import Scalar, in_float32, pointwise
from ..meaning.unary import unary
from ._node import Node
from ._registry import BEYOND, converter
from .elementwise import operands

_SPECIAL: dict[str, Callable[[Scalar], Scalar]] = {
    "Erfc": special.erfc,
    "Lgamma": special.lgamma,
    "Digamma": special.digamma,
    "Erfinv": special.erf_inv,
}


@converter("FloorDiv", domain=BEYOND)
def floor_division(node: Node) -> relax.Expr:
    a, b = operands(node)
    if node.is_known(1) and not np.isin(node.constant(1), (0, -1)).any():
        return pointwise(node, tirx.floordiv, a, b)
    return pointwise(node, floor_divide, a, b)


@converter("Expm1", "Log1p", domain=BEYOND)
def without_cancellation(node: Node) -> relax.Expr:
    return unary(node, node.op.lower(), node.x(0))


@converter(*_SPECIAL, domain=BEYOND)
def of_one(node: Node) -> relax.Expr:
    return pointwise(node, in_float32(_SPECIAL[node.op]), node.x(0))


@converter("NextAfter", domain=BEYOND)
def next_after(node: Node) -> relax.Expr:
    if node.dtype(0) != "float32":
        node.refuse(f"elements of {node.dtype(0)}")
    return pointwise(node, special.next_after, *operands(node))
