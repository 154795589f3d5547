"""Functions of one element that the code generator lacks, or has only with cancellation near zero.

Accurate to a few units in the last place in float32 and float64; shorter types go through float32 (`in_float32`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import tirx

from ...extremes import at_least, at_most
from .pointwise import Scalar, const_like, dtype_of

_FAR = 1e9  # from here on x * x + 1 is x * x, also in float64


def polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Horner's rule, the highest power first."""
    out = const_like(coefficients[0], x)
    for factor in coefficients[1:]:
        out = out * x + const_like(factor, x)
    return out


def _series(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """c0 + c1 x + c2 x^2 + ..."""
    return polynomial(x, coefficients[::-1])


def expm1(x: Scalar) -> Scalar:
    """exp(x) - 1; a series where the difference would cancel."""
    count = 15 if dtype_of(x) == "float64" else 9
    near = x * _series(x, [1 / math.factorial(n) for n in range(1, count)])
    return tirx.Select(tirx.abs(x) < const_like(0.5, x), near, tirx.exp(x) - const_like(1, x))


def log1p(x: Scalar) -> Scalar:
    """log(1 + x); in float64 by the series of 2 atanh(x / (2 + x)) where the sum would lose digits."""
    if dtype_of(x) == "float32":
        return tirx.log1p(x)
    ratio = x / (const_like(2, x) + x)
    near = const_like(2, x) * ratio * _series(ratio * ratio, [1 / (2 * n + 1) for n in range(17)])
    return tirx.Select(tirx.all(x < const_like(0.8, x), x > const_like(-0.45, x)), near, tirx.log(const_like(1, x) + x))


def sinh(x: Scalar) -> Scalar:
    count = 10 if dtype_of(x) == "float64" else 6
    near = x * _series(x * x, [1 / math.factorial(2 * n + 1) for n in range(count)])
    # exp(x / 2) twice: exp(x) itself overflows before sinh does.
    root, half = tirx.exp(x * const_like(0.5, x)), const_like(0.5, x)
    far = half * root * root - half / root / root
    return tirx.Select(tirx.abs(x) < const_like(1, x), near, far)


def cosh(x: Scalar) -> Scalar:
    root, half = tirx.exp(tirx.abs(x) * const_like(0.5, x)), const_like(0.5, x)
    return half * root * root + half / root / root


def tanh(x: Scalar) -> Scalar:
    """Needed in float64 only: the code generator's own cancels near zero."""
    if dtype_of(x) != "float64":
        return tirx.tanh(x)
    grown = expm1(tirx.abs(x) * const_like(-2, x))
    size = -grown / (grown + const_like(2, x))
    return tirx.Select(x < const_like(0, x), -size, tirx.Select(x == const_like(0, x), x, size))


def asinh(x: Scalar) -> Scalar:
    size, one = tirx.abs(x), const_like(1, x)
    near = log1p(size + size * size / (one + tirx.sqrt(size * size + one)))
    out = tirx.Select(size > const_like(_FAR, x), _log_of_double(size), near)
    return tirx.Select(x < const_like(0, x), -out, tirx.Select(x == const_like(0, x), x, out))


def acosh(x: Scalar) -> Scalar:
    """NaN below 1."""
    one = const_like(1, x)
    above = x - one
    near = log1p(above + tirx.sqrt(above * (x + one)))
    out = tirx.Select(x > const_like(_FAR, x), _log_of_double(x), near)
    return tirx.Select(x < one, const_like(math.nan, x), out)


def _log_of_double(x: Scalar) -> Scalar:
    return tirx.log(x) + const_like(math.log(2), x)


def atanh(x: Scalar) -> Scalar:
    size = tirx.abs(x)
    one = const_like(1, x)
    out = const_like(0.5, x) * log1p((size + size) / (one - size))
    bounded = tirx.Select(size > one, tirx.const(math.nan, dtype_of(x)), out)
    return tirx.Select(x < const_like(0, x), -bounded, bounded)


def softplus(x: Scalar) -> Scalar:
    """log(1 + exp(x)), which neither overflows nor loses small results."""
    return at_least(x, const_like(0, x)) + log1p(tirx.exp(-tirx.abs(x)))


def sign(x: Scalar) -> Scalar:
    zero, one = const_like(0, x), const_like(1, x)
    if dtype_of(x).startswith("uint"):
        return tirx.Select(x > zero, one, zero)
    # x itself where it is neither: zero with its sign, or NaN
    return tirx.Select(x > zero, one, tirx.Select(x < zero, const_like(-1, x), x))


def round_half_away(x: Scalar) -> Scalar:
    """The nearest integer, and of two the farther from 0, as C's `round`."""
    whole = tirx.trunc(x)
    return whole + tirx.Select(tirx.abs(x - whole) >= const_like(0.5, x), sign(x), const_like(0, x))


def floor_modulo(a: Scalar, b: Scalar) -> Scalar:
    """The remainder with the sign of `b`, as in Python."""
    zero, rest = const_like(0, a), tirx.Mod(a, b)
    differ = tirx.any(tirx.all(rest < zero, b > zero), tirx.all(rest > zero, b < zero))
    moved = tirx.Select(differ, rest + b, rest)
    return tirx.Select(rest == zero, tirx.Select(b < zero, const_like(-0.0, a), zero), moved)


def floor_divide(a: Scalar, b: Scalar) -> Scalar:
    """The quotient that goes with `floor_modulo`: 1 // 0.1 is 9, though 1 / 0.1 rounds to 10."""
    zero, one = const_like(0, a), const_like(1, a)
    rest = tirx.Mod(a, b)
    differ = tirx.any(tirx.all(rest < zero, b > zero), tirx.all(rest > zero, b < zero))
    quotient = (a - rest) / b - tirx.Select(differ, one, zero)
    whole = tirx.floor(quotient)
    whole = whole + tirx.Select(quotient - whole > const_like(0.5, a), one, zero)
    return tirx.Select(b == zero, a / b, whole)


def elu(x: Scalar, alpha: float, scale: float, slope: float) -> Scalar:
    """scale * x, and alpha * scale * (exp(slope * x) - 1) below zero."""
    below = const_like(alpha, x) * expm1(x * const_like(slope, x) if slope != 1 else x)
    out = tirx.Select(x < const_like(0, x), below, x)
    return out if scale == 1 else const_like(scale, x) * out


def hard_sigmoid(x: Scalar, alpha: float, beta: float) -> Scalar:
    """alpha * x + beta within 0 and 1."""
    return at_most(at_least(x * const_like(alpha, x) + const_like(beta, x), const_like(0, x)), const_like(1, x))


def shift(a: Scalar, b: Scalar, left: bool) -> Scalar:
    """Bits moved by b; amounts outside 0 .. bits - 1 shift everything out."""
    dtype = dtype_of(a)
    zero, bits = const_like(0, a), np.iinfo(dtype).bits
    # All bits above those that count are clear: no negative amount, and none that is too large.
    inside = (b >> tirx.const(bits.bit_length() - 1, dtype)) == zero
    amount = tirx.Select(inside, b, zero)
    if left:
        return tirx.Select(inside, a << amount, zero)
    out = zero if dtype.startswith("uint") else tirx.Select(a < zero, const_like(-1, a), zero)
    return tirx.Select(inside, a >> amount, out)
