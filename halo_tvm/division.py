"""Integer division of elements that never ends the process: a processor traps where a divisor is 0, or where the lowest
number is divided by -1.

x // 0 = 0 and x % 0 = 0; the lowest number divided by -1 is itself, as in two's complement.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx

Division = Callable[[ir.Expr, ir.Expr], ir.Expr]


def _safe(function: Division, by_minus_one: Callable[[ir.Expr], ir.Expr]) -> Division:
    def divided(a: ir.Expr, b: ir.Expr) -> ir.Expr:
        dtype = str(a.dtype if hasattr(a, "dtype") else a.ty.dtype)
        zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
        if dtype.startswith("uint"):
            return tirx.Select(b == zero, zero, function(a, tirx.Select(b == zero, one, b)))
        minus = b == tirx.const(-1, dtype)
        out = function(a, tirx.Select(tirx.any(b == zero, minus), one, b))
        return tirx.Select(b == zero, zero, tirx.Select(minus, by_minus_one(a), out))

    return divided


def _negated(x: ir.Expr) -> ir.Expr:
    return tirx.const(0, str(x.dtype if hasattr(x, "dtype") else x.ty.dtype)) - x


def _nothing(x: ir.Expr) -> ir.Expr:
    return tirx.const(0, str(x.dtype if hasattr(x, "dtype") else x.ty.dtype))


trunc_divide = _safe(tirx.truncdiv, _negated)
floor_divide = _safe(tirx.floordiv, _negated)
trunc_modulo = _safe(tirx.truncmod, _nothing)
floor_modulo = _safe(tirx.floormod, _nothing)
