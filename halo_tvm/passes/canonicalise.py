"""One spelling for what exporters write in many: the only place that knows them, so lifts stay few.

Before -> after
    power(x, 2)            ->   multiply(x, x)
    divide(x, constant)    ->   multiply(x, 1 / constant)
    y = x; z = y           ->   uses of x
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ._pass import Context, Pass, Report, op_name
from ._rewrite import rewrite_calls, scalar_constant


@dataclass(frozen=True)
class Canonicalise(Pass):
    """Rewrite spellings to one canonical form."""

    name = "canonicalise"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        mod = tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.CanonicalizeBindings()])(mod)
        return rewrite_calls(mod, _canonical)


def _canonical(call: relax.Call, _value: object) -> tuple[relax.Expr, str] | None:
    name = op_name(call)
    if name == "relax.power" and scalar_constant(call.args[1]) == 2.0:
        return relax.op.multiply(call.args[0], call.args[0]), "power of two as product"
    divisor = scalar_constant(call.args[1]) if name == "relax.divide" else None
    if divisor and str(call.args[0].ty.dtype) == "float32":
        return relax.op.multiply(
            call.args[0], relax.const(1.0 / divisor, "float32")
        ), "division by a constant as product"
    return None
