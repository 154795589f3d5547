"""Products and quotients of floating-point numbers with a constant zero.

TVM takes 0 * x and 0 / x for 0, also where x is NaN or infinite, and refuses x / 0 while it builds the expression. The
zero therefore stays in memory, where it is a number like any other.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

from tvm import ir, relax

from ._lowering import Lowering, elementwise, plain

_OPERATORS = {"relax.multiply": operator.mul, "relax.divide": operator.truediv}


def lowerings(others: Mapping[str, Lowering]) -> dict[str, Lowering]:
    """For `LegalizeOps`; of operands that are no such zero the lowering is that of `others`, else TVM's."""
    return {name: _lowering(name, others.get(name, plain)) for name in _OPERATORS}


def _lowering(name: str, otherwise: Lowering) -> Lowering:
    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if "float" not in str(call.ty.dtype) or not any(map(_is_zero, call.args)):
            return otherwise(bb, call)
        return elementwise(bb, call, _OPERATORS[name], name.split(".")[1])

    return lower


def _is_zero(expr: relax.Expr) -> bool:
    if not isinstance(expr, ir.GenericConst):
        return False
    data = expr.value.numpy()
    return data.size == 1 and float(data.reshape(-1)[0]) == 0.0
