"""Functions in the sizes of an exported program (torch's sympy expressions) -> TIR expressions.

Floats are float64, as Python's are. Where they are whole numbers, or quotients of such, and are rounded to integers
(`int(n / 2)`, `int(n * 2.0)`, `arange(n, 0, -1.0)`), integers give the same, and sizes made of integers have bounds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeAlias

from tvm import ir, tirx

from ...errors import UnsupportedModel
from ..meaning.sizes import prim

Number: TypeAlias = ir.Expr | int | float
_LARGEST = 1 << 20  # of a factor: products with sizes are exact in float64


def _whole(value: Number) -> ir.Expr | int | None:
    """The integer that a number is, whether or not it is written as a float; None for any other."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, int) or "int" in str(value.ty):
        return value
    if isinstance(value, tirx.Cast) and "int" in str(value.value.ty):
        return value.value
    return None


def _float(value: Number) -> ir.Expr | float:
    return float(value) if isinstance(value, int | float) else value.astype("float64")


def _double(value: Number) -> ir.Expr:
    return tirx.const(float(value), "float64") if isinstance(value, int | float) else value.astype("float64")


def _fold(function: Callable[..., Number]) -> Callable[..., Number]:
    """A function of two numbers over several; of floats where one of them is a float, in integers if all are whole."""

    def build(*values: Number) -> Number:
        whole = [_whole(value) for value in values]
        floats = any(isinstance(v, float) or isinstance(v, ir.Expr) and "float" in str(v.ty) for v in values)
        operands = [_double(value) for value in values] if None in whole else whole
        result = operands[0]
        for value in operands[1:]:
            result = function(result, value)
        return _float(result) if floats else result

    return build


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(exponent, int) and 0 <= exponent <= 8:
        return _product(*([base] * exponent)) if exponent else 1
    if isinstance(base, int | float) and isinstance(exponent, int | float):
        return float(base) ** exponent if isinstance(exponent, float) else base**exponent
    raise UnsupportedModel(
        f"expected sizes made by arithmetic on integers, found {base} to the power of {exponent}: "
        "export the model with simpler dynamic shapes"
    )


def _float_power(base: Number, exponent: Number) -> Number:
    """In float64, as Python's: the root of a size."""
    if isinstance(base, ir.Expr) and isinstance(exponent, float):
        return tirx.pow(_double(base), _double(exponent))
    return _power(base, exponent)


def _floor_divide(a: Number, b: Number) -> ir.Expr:
    return tirx.floordiv(prim(a), prim(b))


def _mod(a: Number, b: Number) -> ir.Expr:
    """`-n % c`, `(c - n % c) % c` and `n % -c`, what fills up to whole blocks of c and what is too much, are written by
    the number of blocks: TVM finds what so many blocks are divided by."""
    if isinstance(b, int) and b > 0:
        negated = _negated(a, b)
        if negated is not None:
            return _blocks(negated, b) - negated
    if isinstance(b, int) and b < 0:
        return prim(a) - _blocks(prim(a), -b)
    return tirx.floormod(prim(a), prim(b))


def _negated(value: Number, c: int) -> ir.Expr | None:
    """n of -n, or of what differs from it by a multiple of c."""
    if isinstance(value, tirx.Add):
        for one, other in ((value.a, value.b), (value.b, value.a)):
            if isinstance(one, tirx.IntImm) and int(one) % c == 0:
                return _negated(other, c)
    if isinstance(value, tirx.Mul):
        for one, other in ((value.a, value.b), (value.b, value.a)):
            if isinstance(one, tirx.IntImm) and int(one) == -1:
                of_c = isinstance(other, tirx.FloorMod) and isinstance(other.b, tirx.IntImm) and int(other.b) == c
                return other.a if of_c else other
    return None


def _blocks(n: ir.Expr, c: int) -> ir.Expr:
    """The least multiple of c that is not below n."""
    return tirx.floordiv(n + (c - 1), c) * c


def _true_divide(a: Number, b: Number) -> Number:
    """A quotient in float64; `_rounded` takes one of whole numbers apart again."""
    whole = _whole(a)
    if whole is not None and isinstance(b, int | float) and abs(b) in (1.0, 0.5, 0.25, 0.125):
        return _float(whole * int(1 / b))
    return tirx.Div(_double(a), _double(b))


def _quotient(value: Number) -> tuple[ir.Expr, int] | None:
    """(a, b), b > 0, of a whole number times or through a constant, or of such and a whole number: where rounding it
    rounds the exact a / b.

    A constant of many digits (0.3) is no such one: its product is rounded to float64 first.
    """
    if isinstance(value, tirx.Add | tirx.Sub):  # c + a / b is whole where a / b is
        for one, other, sign in ((value.a, value.b, 1), (value.b, value.a, -1)):
            whole, rest = _whole(_plain(one)), _quotient(other)
            if whole is not None and rest is not None:
                counted = whole * rest[1]
                return (counted + rest[0] if isinstance(value, tirx.Add) else (counted - rest[0]) * sign), rest[1]
        return None
    if not isinstance(value, tirx.Div | tirx.Mul):
        return None
    a, b = _plain(value.a), _plain(value.b)
    if isinstance(a, float) and isinstance(value, tirx.Mul):
        a, b = b, a
    whole = None if isinstance(a, float) else _whole(a)
    if whole is None or not isinstance(b, float) or not 0 < b < _LARGEST:
        return None
    above, below = b.as_integer_ratio()
    if isinstance(value, tirx.Div):
        above, below = below, above
    return (whole * above, below) if max(above, below) < _LARGEST else None


def _plain(value: ir.Expr) -> Number:
    return float(value.value) if isinstance(value, tirx.FloatImm) else value


def _rounded(exact: Callable[[ir.Expr, int], ir.Expr]) -> Callable[[Number], Number]:
    """A rounding to integers; `exact` is it for the quotient of two integers."""

    def build(value: Number) -> Number:
        whole = _whole(value)
        if whole is not None:
            return whole
        parts = _quotient(value)
        if parts is None:
            raise UnsupportedModel(
                f"expected sizes made by arithmetic on integers, found {value} rounded: "
                "export the model with simpler dynamic shapes"
            )
        return exact(*parts)

    return build


def _nearest(a: ir.Expr, b: int) -> ir.Expr:
    """Halves go to the even neighbour."""
    up = tirx.floordiv(a * 2 + b, 2 * b)
    half = tirx.all(tirx.floormod(a * 2 + b, 2 * b).equal(0), tirx.floormod(up, 2).equal(1))
    return up - half.astype("int64")


def _relation(compare: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> Callable[[Number, Number], ir.Expr]:
    def build(a: Number, b: Number) -> ir.Expr:
        whole = [_whole(value) for value in (a, b)]
        left, right = map(_double, (a, b)) if None in whole else map(prim, whole)
        return compare(left, right)

    return build


def _truth(value: Number) -> ir.Expr:
    return tirx.const(value, "bool") if isinstance(value, bool) else value


_product = _fold(lambda a, b: a * b)

FUNCTIONS: dict[str, Callable[..., Number]] = {
    "Add": _fold(lambda a, b: a + b),
    "Mul": _product,
    "FloatPow": _float_power,
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": _floor_divide,
    "CleanDiv": _floor_divide,
    "IntTrueDiv": _true_divide,
    "FloatTrueDiv": _true_divide,
    "Mod": _mod,
    "PythonMod": _mod,
    "Max": _fold(lambda a, b: tirx.max(prim(a), prim(b))),
    "Min": _fold(lambda a, b: tirx.min(prim(a), prim(b))),
    "TruncToInt": _rounded(lambda a, b: tirx.truncdiv(a, tirx.IntImm("int64", b))),
    "FloorToInt": _rounded(tirx.floordiv),
    "CeilToInt": _rounded(lambda a, b: tirx.floordiv(a + (b - 1), b)),
    "RoundToInt": _rounded(_nearest),
    "ToFloat": _float,
    "Equality": _relation(lambda a, b: a.equal(b)),
    "Unequality": _relation(lambda a, b: tirx.Not(a.equal(b))),
    "LessThan": _relation(operator.le),
    "StrictLessThan": _relation(operator.lt),
    "GreaterThan": _relation(operator.ge),
    "StrictGreaterThan": _relation(operator.gt),
    "And": lambda *values: tirx.all(*map(_truth, values)),
    "Or": lambda *values: tirx.any(*map(_truth, values)),
    "Not": lambda value: tirx.Not(_truth(value)),
    "Identity": lambda a: a,
}
