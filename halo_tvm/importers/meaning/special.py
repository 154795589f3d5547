"""Functions of one element that few formats have an operator for, in float32."""

from __future__ import annotations

import math

from tvm import tirx

from ...extremes import maximum, minimum
from .pointwise import Scalar, const, const_like
from .scalar import log1p, polynomial

# Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011): in w - 2.5 below 5, in sqrt(w) - 3 above.
_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
# Of erfc(x) exp(x^2) / t in t = 1 / (1 + x / 2).
_ERFC = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)
# Lanczos' approximation with g = 7 and nine terms (Godfrey).
_LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)


def cbrt(x: Scalar) -> Scalar:
    """By one step of Newton behind the power, with the sign of x."""
    size = tirx.abs(x)
    root = tirx.pow(size, const_like(1 / 3, x))
    better = root - (root * root * root - size) / (const_like(3, x) * root * root)
    plain = tirx.any(size == const_like(0, x), size == const_like(math.inf, x), tirx.isnan(x))
    out = tirx.Select(plain, size, better)
    return tirx.Select(x < const_like(0, x), -out, tirx.Select(plain, x, out))


def hypot(x: Scalar, y: Scalar) -> Scalar:
    """sqrt(x^2 + y^2) where the squares overflow or vanish, too; infinite beside NaN as well."""
    one, zero, infinite = const_like(1, x), const_like(0, x), const_like(math.inf, x)
    x, y = tirx.abs(x), tirx.abs(y)
    more, less = maximum(x, y), minimum(x, y)
    ratio = less / tirx.Select(more > zero, more, one)
    some = tirx.any(x.equal(infinite), y.equal(infinite))
    return tirx.Select(some, infinite, more * tirx.sqrt(one + ratio * ratio))


def erf_inv(x: Scalar) -> Scalar:
    one = const_like(1, x)
    w = -log1p(-x * x)
    near, far = w - const_like(2.5, x), tirx.sqrt(w) - const_like(3, x)
    factor = tirx.Select(w < const_like(5, x), polynomial(near, _NEAR), polynomial(far, _FAR))
    edge = tirx.Select(x > const_like(0, x), const_like(math.inf, x), const_like(-math.inf, x))
    return tirx.Select(tirx.abs(x) == one, edge, factor * x)


def erfc(x: Scalar) -> Scalar:
    """1 - erf(x), of large x to its own last digits (W. H. Press et al., Numerical Recipes, 6.2)."""
    size, one = tirx.abs(x), const_like(1, x)
    t = one / (one + const_like(0.5, x) * size)
    far = t * tirx.exp(polynomial(t, _ERFC) - size * size)
    near = one - tirx.erf(size)
    positive = tirx.Select(size < const_like(0.5, x), near, far)
    return tirx.Select(x < const_like(0, x), const_like(2, x) - positive, positive)


def lgamma(x: Scalar) -> Scalar:
    """log |gamma(x)|; below 1/2 by reflection."""
    half, one = const_like(0.5, x), const_like(1, x)
    mirrored = x < half
    z = tirx.Select(mirrored, -x, x - one)
    series = const_like(_LANCZOS[0], x)
    for place, factor in enumerate(_LANCZOS[1:], 1):
        series = series + const_like(factor, x) / (z + const_like(place, x))
    base = z + const_like(7.5, x)
    # (z + 1/2) log(base) - base without the difference of two large numbers
    right = const_like(0.5 * math.log(2 * math.pi), x) + tirx.log(series) + (z + half) * tirx.log(base) - base
    turn = tirx.abs(x) - tirx.floor(tirx.abs(x))
    turn = tirx.Select(turn > half, one - turn, turn)
    left = const_like(math.log(math.pi), x) - tirx.log(tirx.abs(tirx.sin(const_like(math.pi, x) * turn))) - right
    out = tirx.Select(mirrored, left, right)
    out = tirx.Select(tirx.any(x == one, x == const_like(2, x)), const_like(0, x), out)
    return tirx.Select(tirx.abs(x) == const_like(math.inf, x), const_like(math.inf, x), out)


def digamma(x: Scalar) -> Scalar:
    """The derivative of lgamma: stepped up by eight, then its asymptotic series; below 0 by reflection."""
    zero, one = const_like(0, x), const_like(1, x)
    mirrored = x < zero
    z = tirx.Select(mirrored, one - x, x)
    steps = zero
    for place in range(8):
        steps = steps + one / (z + const_like(place, x))
    y = z + const_like(8, x)
    inverse = one / (y * y)
    tail = inverse * (const_like(1 / 12, x) - inverse * (const_like(1 / 120, x) - inverse * const_like(1 / 252, x)))
    right = tirx.log(y) - const_like(0.5, x) / y - tail - steps
    turn = const_like(math.pi, x) * (x - tirx.floor(x))
    left = right - const_like(math.pi, x) * tirx.cos(turn) / tirx.sin(turn)
    out = tirx.Select(mirrored, left, right)
    pole = tirx.all(x <= zero, x == tirx.floor(x))
    return tirx.Select(pole, const_like(math.nan, x), out)


def next_after(x: Scalar, y: Scalar) -> Scalar:
    """The float32 next to x in the direction of y."""
    bits, zero = tirx.reinterpret("int32", x), const_like(0, x)
    away = tirx.any(tirx.all(y > x, x > zero), tirx.all(y < x, x < zero))
    moved = tirx.reinterpret("float32", bits + tirx.Select(away, const(1, "int32"), const(-1, "int32")))
    least = tirx.reinterpret("float32", const(1, "int32"))
    moved = tirx.Select(x == zero, tirx.Select(y > zero, least, -least), moved)
    unordered = tirx.any(tirx.isnan(x), tirx.isnan(y))
    return tirx.Select(unordered, x + y, tirx.Select(x == y, y, moved))
