"""Maximum, minimum and comparison of floating-point numbers that may be NaN or infinite, and choices by truth values.

The code generator compares truth values as if they were floats, which LLVM refuses: they are compared as bytes.
NaN differs from every number, in the code generator's comparison it does not.
TVM's own lowering loses the NaN of the first operand and of all but the last element of a row. It starts a row from
the largest finite number: the maximum of a row of -inf would be -3.4e38, and what asks for rows without a visible key
would not find them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from tvm import ir, relax, te, tirx

from ..extremes import at_least, at_most, is_nan, maximum, minimum
from ..relay_ops.operator import number_of
from ._lowering import HALVES, Lowering, elementwise, plain, reduced

_ALONG = {
    "relax.max": (maximum, -math.inf),
    "relax.min": (minimum, math.inf),
}
_COMPARISONS = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
_OF_TWO = {"relax.maximum": (maximum, at_least), "relax.minimum": (minimum, at_most)}


def lowerings() -> dict[str, Lowering]:
    """For `LegalizeOps`."""
    found = {name: _along(name) for name in _ALONG} | {name: _of_two(name) for name in _OF_TWO}
    found["relax.where"] = _chosen
    return found | {f"relax.{name}": _comparison(name, function) for name, function in _COMPARISONS.items()}


def _along(name: str) -> Lowering:
    combine, start = _ALONG[name]

    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        dtype = str(call.args[0].ty.dtype)
        if "float" not in dtype:
            return plain(bb, call)
        reducer = te.comm_reducer(combine, lambda dtype: tirx.const(start, dtype))
        return reduced(bb, call, reducer, name.split(".")[1], wide="float32" if dtype in HALVES else None)

    return lower


def _of_two(name: str) -> Lowering:
    function, of_number = _OF_TWO[name]

    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, bound = call.args
        if str(x.ty.dtype) == "bool":
            return elementwise(bb, call, tirx.any if function is maximum else tirx.all, name.split(".")[1])
        number = number_of(bound)
        if number is None or math.isnan(number) or any(d != 1 for d in bound.value.shape) or bound.ty.ndim > x.ty.ndim:
            return elementwise(bb, call, function, name.split(".")[1])

        def bounded(value: ir.Expr) -> ir.Expr:
            return of_number(value, tirx.const(bound.value.numpy().reshape(-1)[0], str(bound.ty.dtype)))

        return elementwise(bb, relax.Call(call.op, [x]), bounded, name.split(".")[1])

    return lower


def _chosen(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """By the condition itself: TVM asks whether a number made of it is not 0, a choice that its simplifier repeats."""
    return elementwise(bb, call, tirx.Select, "where")


def _comparison(name: str, function: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> Lowering:
    def lower(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        dtype = str(call.args[0].ty.dtype)
        if dtype == "bool":
            return elementwise(bb, call, lambda a, b: function(a.astype("uint8"), b.astype("uint8")), name)
        if "float" in dtype and name == "not_equal":
            return elementwise(bb, call, lambda a, b: tirx.any(a != b, is_nan(a), is_nan(b)), name)
        return plain(bb, call)

    return lower
