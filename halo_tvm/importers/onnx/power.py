"""Pow: the result has the type of the base, whatever the type of the exponent."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..meaning.broadcast import aligned
from ..meaning.builder import expr_dtype
from ..meaning.power import power_of_integers
from ._node import Node
from ._registry import converter
from .elementwise import operands


@converter("Pow")
def power(node: Node) -> relax.Expr:
    base, exponent = operands(node)
    dtype, other = expr_dtype(base), expr_dtype(exponent)
    if "float" not in dtype and "float" not in other:
        return power_of_integers(node, base, exponent)
    wide = "float64" if "float64" in (dtype, other) or "float" not in dtype else "float32"
    if node.is_known(1) and node.constant(1).size == 1:
        # A scalar: the compiler knows squares, roots and reciprocals.
        value = float(node.constant(1).reshape(-1)[0])
        if wide == "float64" and expr_dtype(base) == "float32" and value == np.float32(value):
            wide = "float32"
        exponent = relax.const(np.full(node.constant(1).shape, value), wide)
    pair = aligned(node, [node.cast(base, wide), node.cast(exponent, wide)])
    return node.cast(node.emit(relax.op.power(*pair)), dtype)
