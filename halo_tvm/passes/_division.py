"""Quotients and remainders of integer tensors by code that does not trap, where a divisor may be 0 or -1."""

from __future__ import annotations

from tvm import relax

from .. import division
from ..relay_ops.operator import number_of
from ._lowering import Lowering, elementwise, plain

QUOTIENTS = {
    "relax.divide": division.trunc_divide,
    "relax.floor_divide": division.floor_divide,
    "relax.mod": division.trunc_modulo,
    "relax.floor_mod": division.floor_modulo,
}


def lowerings() -> dict[str, Lowering]:
    """For `LegalizeOps`."""
    return {name: _lowering(name) for name in QUOTIENTS}


def _lowering(name: str) -> Lowering:
    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if "int" not in str(call.ty.dtype) or number_of(call.args[1]) not in (None, 0, -1):
            return plain(bb, call)
        return elementwise(bb, call, QUOTIENTS[name], name.split(".")[1])

    return lower
