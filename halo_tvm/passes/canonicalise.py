"""One spelling for what exporters write in many: the only place that knows them, so lifts stay few.

Before -> after
    power(x, 2)            ->   multiply(x, x)
    divide(x, constant)    ->   multiply(x, 1 / constant)   where 1 / constant is a power of two, so no bit changes
    divide(1, sqrt(x))     ->   rsqrt(x)
    multiply(w, x), add(w, x)   ->   operands exchanged, where w is a constant or of a lower rank than x
    y = x; z = y           ->   uses of x
    y = f(x); z = f(x)     ->   uses of y
    x * 0.5 * (1 + erf(x / sqrt(2))), factors in any order                        ->   nn.gelu(x)
    x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), likewise           ->   nn.gelu_tanh(x)
    x * sigmoid(x)                                                                ->   nn.silu(x)
    what `_statistics` lists: means, variances and softmax that are written out
Left alone
    anything whose result would have another shape or dtype; activations with other constants
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..relay_ops.operator import number_of
from ._decomposed import activation_of
from ._rewrite import rewrite_calls
from ._statistics import statistic_of
from .graph_pass import Context, Pass, Report, op_name, same_type

# What is written twice, as a mean for the norm and for its variance, is one to the rules below and to lifts.
_TIDY = (relax.transform.Normalize, relax.transform.EliminateCommonSubexpr, relax.transform.CanonicalizeBindings)


@dataclass(frozen=True)
class Canonicalise(Pass):
    """Rewrite spellings to one canonical form."""

    name = "canonicalise"

    def __call__(self, mod: tvm.IRModule, context: Context) -> tuple[tvm.IRModule, Report]:
        return rewrite_calls(tvm.transform.Sequential([step() for step in _TIDY])(mod), _canonical)


def _canonical(call: relax.Call, value: Callable[[relax.Expr], relax.Expr]) -> tuple[relax.Expr, str] | None:
    name = op_name(call)
    if (statistic := statistic_of(call, value)) is not None:
        return statistic
    if name == "relax.multiply":
        found = activation_of(call, value)
        if found is not None and same_type(found[1].ty, call.ty):
            activation, x = found
            return getattr(relax.op.nn, activation)(x), f"decomposed {activation}"
    if name == "relax.power" and number_of(call.args[1]) == 2.0 and same_type(call.args[0].ty, call.ty):
        return relax.op.multiply(call.args[0], call.args[0]), "power of two as product"
    if name == "relax.divide" and str(call.ty.dtype) == "float32" and same_type(call.args[0].ty, call.ty):
        inverse = _exact_inverse(number_of(call.args[1]))
        if inverse is not None:
            return relax.op.multiply(call.args[0], relax.const(inverse, "float32")), "division by a constant as product"
    if name == "relax.divide" and number_of(call.args[0]) == 1.0 and op_name(value(call.args[1])) == "relax.sqrt":
        root = value(call.args[1])
        if same_type(root.ty, call.ty):
            return relax.op.rsqrt(root.args[0]), "inverse of a square root"
    if name in ("relax.multiply", "relax.add") and _comes_second(*call.args):
        return getattr(relax.op, name.removeprefix("relax."))(call.args[1], call.args[0]), "operands exchanged"
    return None


def _comes_second(left: relax.Expr, right: relax.Expr) -> bool:
    """Whether lifts expect `left` behind `right`: a constant behind a variable, a vector behind a matrix."""
    constants = [isinstance(x, tvm.ir.GenericConst) for x in (left, right)]
    if constants[0] != constants[1]:
        return constants[0]
    return 0 <= left.ty.ndim < right.ty.ndim


def _exact_inverse(divisor: float | None) -> float | None:
    """1 / divisor where it is a normal float32 and exact: for powers of two only."""
    if not divisor or not math.isfinite(divisor) or abs(math.frexp(divisor)[0]) != 0.5:
        return None
    inverse = 1.0 / divisor
    return inverse if 2.0**-126 <= abs(inverse) <= 2.0**127 else None
