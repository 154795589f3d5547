"""x to the power y as a float32 expression that vectorises.

Computation
    2^(y log2 |x|) in float64: the logarithm of the fraction of |x| by the quotient (m - 1) / (m + 1), whose odd powers
    are a series; the power of what y log2 |x| is more than an integer by Taylor's series. Both are put together and
    taken apart by the bits of numbers, since vectors of 64-bit integers have no conversions before AVX-512DQ
Numerics
    over all float32 inputs: 6.1e-8 relative, as rounded once; denormal results included. Zeros, infinities, NaN and
    negative bases as in C: of a negative base only whole powers are numbers, 1 to any power and any x to 0 are 1
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from .bits import bits_of, equal, float_of, int_like, is_nan, like, with_lanes
from .lets import hoist_lets, let
from .vector_math import polynomial

_SERIES = tuple(2 / (math.log(2) * (2 * k + 1)) for k in range(7))  # of log2(m) in s = (m - 1) / (m + 1), |s| <= 0.172
_TAYLOR = tuple(math.log(2) ** k / math.factorial(k) for k in range(10))  # of 2^r, |r| <= 1/2
_FRACTION, _BIAS = 52, 1023  # bits of a float64
_HALF_ROOT = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_MAGIC = 2.0**52  # its last bits are those of an integer that is added
_FAR = 400.0  # 2^400 and 2^-400 are none of float32


def power(x: Expr, y: Expr, keep: Callable[[Expr], Expr] = lambda value: value) -> Expr:
    """x^y; `keep` is given what is to be stored, to be evaluated once."""

    def of(x: Expr, y: Expr) -> Expr:
        size = tirx.abs(x)
        exponent = keep(let(tirx.Cast(with_lanes("float64", x), size), _log2) * tirx.Cast(with_lanes("float64", x), y))
        inside = tirx.Cast(with_lanes("float32", x), let(exponent, _exp2))
        zero = equal(size, 0.0)
        # A base of 0 or infinity: without a comparison of comparisons, which LLVM gets as one of floats.
        ends = like(x, math.inf), like(x, 0.0)
        below, above = (tirx.Select(y < like(x, 0.0), *pair) for pair in (ends, ends[::-1]))
        at_end = tirx.Select(zero, below, above)
        magnitude = tirx.Select(tirx.Or(zero, equal(size, math.inf)), at_end, inside)
        return let(magnitude, lambda value: signed(x, y, value))

    def signed(x: Expr, y: Expr, value: Expr) -> Expr:
        half = y * like(y, 0.5)
        whole, odd = tirx.EQ(tirx.nearbyint(y), y), tirx.NE(tirx.nearbyint(half), half)
        sign = tirx.bitwise_and(bits_of(x), int_like(x, -(2**31)))
        turned = float_of(tirx.bitwise_or(bits_of(value), tirx.Select(tirx.all(whole, odd), sign, int_like(x, 0))))
        none = tirx.any(tirx.all(x < like(x, 0.0), x > like(x, -math.inf), tirx.Not(whole)), is_nan(x), is_nan(y))
        far = tirx.all(equal(tirx.abs(x), 1.0), equal(tirx.abs(y), math.inf))
        one = tirx.any(equal(x, 1.0), equal(y, 0.0), far)
        return tirx.Select(one, like(x, 1.0), tirx.Select(none, like(x, math.nan), turned))

    if isinstance(y, tirx.FloatImm):  # TVM keeps a constant of float32 in float64, unrounded
        y = tirx.const(float(np.float32(y.value)), "float32")
    return hoist_lets(let(x, lambda x: let(y, lambda y: of(x, y))))


def _log2(size: Expr) -> Expr:
    """Of a float64 above 0: its exponent, and the logarithm of a fraction between sqrt(1/2) and sqrt(2)."""
    kind = with_lanes("uint64", size)

    def split(bits: Expr) -> Expr:
        # the exponent and the bias, so that nothing is negative
        biased = (bits + like(size, (_BIAS << _FRACTION) - _HALF_ROOT, "uint64")) >> like(size, _FRACTION, "uint64")
        return let(biased, lambda biased: joined(bits, biased))

    def joined(bits: Expr, biased: Expr) -> Expr:
        as_number = tirx.reinterpret(
            with_lanes("float64", size), tirx.bitwise_or(biased, like(size, 0x433 << _FRACTION, "uint64"))
        ) - _wide(size, _MAGIC + _BIAS)
        fraction = bits + ((like(size, _BIAS, "uint64") - biased) << like(size, _FRACTION, "uint64"))
        return let(tirx.reinterpret(with_lanes("float64", size), fraction), lambda m: as_number + of_fraction(m))

    def of_fraction(m: Expr) -> Expr:
        quotient = (m - _wide(size, 1.0)) / (m + _wide(size, 1.0))
        return let(quotient, lambda s: let(s * s, lambda square: s * polynomial(_SERIES, square)))

    return let(tirx.reinterpret(kind, size), split)


def _exp2(exponent: Expr) -> Expr:
    """2^exponent in float64; 0 and infinity of float32 where it is far away."""
    near = tirx.Select(exponent > _wide(exponent, _FAR), _wide(exponent, _FAR), exponent)
    near = let(near, lambda t: tirx.Select(t < _wide(exponent, -_FAR), _wide(exponent, -_FAR), t))

    def split(t: Expr) -> Expr:
        return let(tirx.nearbyint(t), lambda n: let(polynomial(_TAYLOR, t - n), lambda value: value * scale(n)))

    def scale(n: Expr) -> Expr:
        bits = tirx.reinterpret(with_lanes("uint64", n), n + _wide(n, _MAGIC + _BIAS))
        return tirx.reinterpret(with_lanes("float64", n), bits << like(n, _FRACTION, "uint64"))

    return let(near, split)


def _wide(x: Expr, value: float) -> Expr:
    return like(x, value, "float64")
