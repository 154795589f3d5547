"""Functions of one element that the code generator lacks, or has only with cancellation near zero.

Accurate to a few units in the last place in float32 and float64; shorter types go through float32 (`in_float32`).
"""

from __future__ import annotations

import math

from tvm import tirx

from ..meaning.pointwise import Scalar, const_like, dtype_of


def _series(x: Scalar, coefficients: list[float]) -> Scalar:
    """c0 + c1 x + c2 x^2 + ... by Horner's rule."""
    out = const_like(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        out = out * x + const_like(c, x)
    return out


def expm1(x: Scalar) -> Scalar:
    """exp(x) - 1; a series where the difference would cancel."""
    count = 15 if dtype_of(x) == "float64" else 9
    near = x * _series(x, [1 / math.factorial(n) for n in range(1, count)])
    return tirx.Select(tirx.abs(x) < const_like(0.5, x), near, tirx.exp(x) - const_like(1, x))


def log1p(x: Scalar) -> Scalar:
    """log(1 + x) for x >= 0; in float64 by the series of 2 atanh(x / (2 + x)) where the sum would lose digits."""
    if dtype_of(x) == "float32":
        return tirx.log1p(x)
    ratio = x / (const_like(2, x) + x)
    near = const_like(2, x) * ratio * _series(ratio * ratio, [1 / (2 * n + 1) for n in range(17)])
    return tirx.Select(x < const_like(0.8, x), near, tirx.log(const_like(1, x) + x))


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


def atanh(x: Scalar) -> Scalar:
    size = tirx.abs(x)
    one = const_like(1, x)
    out = const_like(0.5, x) * log1p((size + size) / (one - size))
    bounded = tirx.Select(size > one, tirx.const(math.nan, dtype_of(x)), out)
    return tirx.Select(x < const_like(0, x), -bounded, bounded)


def softplus(x: Scalar) -> Scalar:
    """log(1 + exp(x)), which neither overflows nor loses small results."""
    return maximum(x, const_like(0, x)) + log1p(tirx.exp(-tirx.abs(x)))


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """NaN when either is."""
    if "float" not in dtype_of(a):
        return tirx.max(a, b)
    return tirx.Select(tirx.any(a > b, tirx.isnan(a)), a, b)


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """NaN when either is."""
    if "float" not in dtype_of(a):
        return tirx.min(a, b)
    return tirx.Select(tirx.any(a < b, tirx.isnan(a)), a, b)


def sign(x: Scalar) -> Scalar:
    zero, one = const_like(0, x), const_like(1, x)
    if dtype_of(x).startswith("uint"):
        return tirx.Select(x > zero, one, zero)
    # x itself where it is neither: zero with its sign, or NaN
    return tirx.Select(x > zero, one, tirx.Select(x < zero, const_like(-1, x), x))
