"""exp, exp2, tanh, erf, sigmoid and logarithms as float32 expressions that vectorise.

Computation
    range reduction by adding 1.5 * 2^23, a polynomial, and the exponent put back as integer bits;
    `x` may be a scalar or a vector expression (then the result has as many lanes)
Numerics
    over all float32 inputs: exp, exp2, log 8e-8 relative; sigmoid, log2, log10, log1p 1.7e-7;
    erf, tanh 2.3e-7 relative, also near zero; erf 7e-8 absolute; gelu more exact than with the C
    library's erff, gelu_tanh within 5e-8 and a rounding of x. NaN stays NaN, infinities are right,
    and results below the smallest normal number become zero.
References
    W. J. Cody, W. Waite: Software Manual for the Elementary Functions (1980), for the range
    reduction. The coefficients are minimax fits of our own (iteratively re-weighted least squares).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr

from .bits import bits_of, equal, float_of, int_like, kind_of, like, with_lanes, with_sign_of
from .lets import hoist_lets, let

# Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, and leaves that integer in the low bits.
ROUND = 12582912.0
LOG2E = 1.4426950408889634
LOG10E = 0.4342944819032518
# The high parts have so few bits that n * high is exact.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
LOG10_2_HIGH, LOG10_2_LOW = 0.30078125, 2.48745663981195e-4
EXP_LOWEST, EXP_HIGHEST = -87.33654, 88.72283  # outside: below the smallest normal, above the largest number
FLT_MAX, FLT_MIN = 3.4028234663852886e38, 1.1754943508222875e-38

# (e^r - 1) / r on |r| <= ln(2)/2, error 1e-8; (2^r - 1) / r on |r| <= 1/2, error 1e-8
EXPM1 = (
    1.0000000106597724,
    0.499999981191575,
    0.1666650589899345,
    0.04166713715178961,
    0.008369104293413024,
    0.0013888872536991666,
)
EXP2M1 = (0.693147188, 0.240226498, 0.0555035722, 0.00961823793, 0.00133908498, 0.000154035122)
# -log2(1 - erf(t)) / t on 0 <= t <= 3.95, weighted so that erf itself is good to 4e-9 of its value
ERF = (
    1.6279070377349854,
    0.9184476137161255,
    0.14827705919742584,
    -0.027632026001811028,
    -0.00023141322890296578,
    0.0024050245992839336,
    -0.000912998104467988,
    0.00016972279991023242,
    -1.3354250768315978e-05,
)
ERF_ONE = 3.95  # erf rounds to 1 from 3.92 on
# -log2(1 - erf(a / sqrt(2))) / a on 0 <= a <= 5, weighted so that gelu is good to 9e-9; beyond, it grows on its own
GELU = (
    1.1511110067367554,
    0.4591621458530426,
    0.05262761190533638,
    -0.007245420943945646,
    0.00027207567472942173,
    0.00013147323625162244,
    -2.805694384733215e-05,
    1.902065832837257e-06,
)
GELU_ZERO = 10.0  # -gelu(-10) is below 1e-22
# -log2(1 - tanh(u(a))) / a, u(a) = sqrt(2 / pi) (a + 0.044715 a^3), on 0 <= a <= 5; the GELU is within 5e-8
GELU_TANH = (
    1.151059865951538,
    0.459654301404953,
    0.0499207079410553,
    -0.004899344872683287,
    -0.002621663035824895,
    0.0017432242166250944,
    -0.00019643802079372108,
    -1.943296410900075e-05,
    3.5636867323773913e-06,
)
GELU_TANH_ZERO = 6.0  # it is below 1e-10 there
# (log(1 + f) - f) / f^2 on sqrt(1/2) <= 1 + f <= sqrt(2), error 4e-9 of log(1 + f)
LOG1P = (
    -0.49999988079071045,
    0.33333325386047363,
    -0.25001582503318787,
    0.2000197470188141,
    -0.16609081625938416,
    0.14181813597679138,
    -0.13242985308170319,
    0.12904493510723114,
    -0.07621856033802032,
)
TANH_ONE = 9.1  # tanh rounds to 1 from 9.01 on
SQRT_HALF_BITS = 0x3F3504F3


def exp(x: Expr) -> Expr:
    """e^x for a float32 scalar or vector expression."""

    def body(x: Expr) -> Expr:
        def reduced(shifted: Expr) -> Expr:
            n = shifted - like(x, ROUND)
            return let(x - n * like(x, LN2_HIGH) - n * like(x, LN2_LOW), lambda r: _scale(_one_plus(EXPM1, r), shifted))

        value = let(x * like(x, LOG2E) + like(x, ROUND), reduced)
        return _in_range(x, value, EXP_LOWEST, EXP_HIGHEST)

    return let(x, body)


def exp2(x: Expr) -> Expr:
    """2^x for a float32 scalar or vector expression."""

    def body(x: Expr) -> Expr:
        def reduced(shifted: Expr) -> Expr:
            return let(x - (shifted - like(x, ROUND)), lambda r: _scale(_one_plus(EXP2M1, r), shifted))

        value = let(x + like(x, ROUND), reduced)
        return _in_range(x, value, -126.0, 127.99999)

    return let(x, body)


def tanh(x: Expr) -> Expr:
    """tanh(x) = (e^2x - 1) / (e^2x + 1), relatively exact near zero because e^2x - 1 is never rounded to e^2x."""

    def body(x: Expr) -> Expr:
        return let(
            _exp2m1(x * like(x, 2 * LOG2E), lambda power, q: power * q + (power - like(x, 1.0))),
            lambda e: e / (e + like(x, 2.0)),
        )

    return hoist_lets(let(_clamp(x, -TANH_ONE, TANH_ONE), body))


def erf(x: Expr) -> Expr:
    """erf(x) = sign(x) * (1 - 2^(-t P(t))), t = |x|; 1 - 2^y is formed so that it is relatively exact near zero."""

    def body(x: Expr) -> Expr:
        def of_magnitude(t: Expr) -> Expr:
            exponent = -t * polynomial(ERF, t)
            return _exp2m1(exponent, lambda power, q: (like(x, 1.0) - power) - power * q)

        magnitude = tirx.abs(x)
        value = let(tirx.Select(magnitude > like(x, ERF_ONE), like(x, ERF_ONE), magnitude), of_magnitude)
        return with_sign_of(x, value)

    return hoist_lets(let(x, body))


def gelu(x: Expr) -> Expr:
    """x (1 + erf(x / sqrt(2))) / 2: shorter than erf."""
    return _by_tail(x, GELU, GELU_ZERO)


def gelu_tanh(x: Expr) -> Expr:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, without the division of tanh."""
    return _by_tail(x, GELU_TANH, GELU_TANH_ZERO)


def _by_tail(x: Expr, coefficients: Sequence[float], zero: float) -> Expr:
    """max(x, 0) - a 2^(-1 - a P(a)), a = |x| but no more than `zero`: no cancellation.

    The maximum is a product: of -inf it is NaN, as by the formulas with erf and tanh.
    """

    def body(x: Expr) -> Expr:
        def of_magnitude(a: Expr) -> Expr:
            def rounded(y: Expr) -> Expr:
                def shift(shifted: Expr) -> Expr:
                    return let(y - (shifted - like(x, ROUND)), lambda r: _scale(_one_plus(EXP2M1, r), shifted))

                return let(y + like(x, ROUND), shift)

            half_tail = let(-a * polynomial(coefficients, a) - like(x, 1.0), rounded)
            return x * tirx.Select(x > like(x, 0.0), like(x, 1.0), like(x, 0.0)) - a * half_tail

        magnitude = tirx.abs(x)
        return let(tirx.Select(magnitude > like(x, zero), like(x, zero), magnitude), of_magnitude)

    return hoist_lets(let(x, body))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x)."""
    return hoist_lets(like(x, 1.0) / (like(x, 1.0) + exp(-x)))


def log(x: Expr) -> Expr:
    """Natural logarithm; -inf at zero, NaN below."""
    return _logarithm(x, lambda e, f, tail: e * like(x, LN2_HIGH) + (f + (tail + e * like(x, LN2_LOW))))


def _logarithm(x: Expr, sum_up: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """sum_up(e, f, tail) for x = 2^e (1 + f), f + tail being the natural logarithm of 1 + f."""

    def body(x: Expr) -> Expr:
        tiny = x < like(x, FLT_MIN)

        def normal(raw: Expr) -> Expr:
            # The variable is the raw bits: with a range of its own, an integer variable would have two in TVM's
            # analysis of integer stores, inside its `Let` and outside, which that refuses.
            bits = raw - int_like(x, SQRT_HALF_BITS)
            raised = tirx.shift_right(bits, int_like(x, 23))
            exponent = tirx.Cast(with_lanes("float32", x), raised) - tirx.Select(tiny, like(x, 23.0), like(x, 0.0))
            mantissa = float_of(tirx.bitwise_and(bits, int_like(x, 0x7FFFFF)) + int_like(x, SQRT_HALF_BITS))

            def summed(f: Expr) -> Expr:
                return let(exponent, lambda e: sum_up(e, f, f * f * polynomial(LOG1P, f)))

            return let(mantissa - like(x, 1.0), summed)

        scaled = tirx.Select(tiny, x * like(x, 8388608.0), x)
        value = let(bits_of(scaled), normal)
        infinity = like(x, math.inf)
        # NaN below zero, and of NaN: TVM's C code generator has no word for it.
        at_zero = tirx.Select(equal(x, 0.0), like(x, -math.inf), x * infinity + infinity)
        return tirx.Select(x > like(x, 0.0), tirx.Select(x <= like(x, FLT_MAX), value, infinity), at_zero)

    return hoist_lets(let(x, body))


def log1p(x: Expr) -> Expr:
    """log(1 + x), relatively exact near zero."""

    def body(x: Expr) -> Expr:
        def corrected(u: Expr) -> Expr:
            # log(u) * x / (u - 1) undoes the rounding of u = 1 + x
            rest = tirx.Select(x < like(x, 1e8), x / (u - like(x, 1.0)), like(x, 1.0))
            return tirx.Select(equal(u, 1.0), x, let(log(u), lambda y: tirx.Select(u > like(x, 0.0), y * rest, y)))

        return let(x + like(x, 1.0), corrected)

    return hoist_lets(let(x, body))


def log2(x: Expr) -> Expr:
    """Base-2 logarithm, exact of powers of two."""
    return _logarithm(x, lambda e, f, tail: e + (f + tail) * like(x, LOG2E))


def log10(x: Expr) -> Expr:
    """Base-10 logarithm."""

    def sum_up(e: Expr, f: Expr, tail: Expr) -> Expr:
        return e * like(x, LOG10_2_HIGH) + ((f + tail) * like(x, LOG10E) + e * like(x, LOG10_2_LOW))

    return _logarithm(x, sum_up)


BUILDERS: dict[str, Callable[[Expr], Expr]] = {
    "exp": exp,
    "exp2": exp2,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
}


def polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    kind = kind_of(x)
    out = like(x, coefficients[-1], kind)
    for c in reversed(coefficients[:-1]):
        out = out * x + like(x, c, kind)
    return out


def _one_plus(coefficients: Sequence[float], r: Expr) -> Expr:
    return r * polynomial(coefficients, r) + like(r, 1.0)


def _scale(value: Expr, shifted: Expr) -> Expr:
    """`value` * 2^n for value in [0.7, 1.5], n being the integer that the rounding left in `shifted`.

    Adding to the exponent bits reaches 2^128 * 0.99, which a multiplication by 2^n could not.
    """
    return let(value, lambda v: float_of(bits_of(v) + tirx.shift_left(bits_of(shifted), int_like(v, 23))))


def _in_range(x: Expr, value: Expr, lowest: float, highest: float) -> Expr:
    """`value`, but zero below `lowest` and, through a product, infinity above `highest` and NaN for NaN."""
    inside = tirx.Select(x >= like(x, lowest), value, like(x, 0.0))
    return tirx.Select(x <= like(x, highest), inside, x * like(x, FLT_MAX))


def _clamp(x: Expr, lowest: float, highest: float) -> Expr:
    """Both comparisons are false for NaN, which passes."""
    return let(
        x,
        lambda x: tirx.Select(
            x > like(x, highest), like(x, highest), tirx.Select(x < like(x, lowest), like(x, lowest), x)
        ),
    )


def _exp2m1(exponent: Expr, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    """combine(2^n, 2^r - 1) with n + r = `exponent`, so that 2^exponent - 1 = 2^n (2^r - 1) + (2^n - 1)."""

    def reduced(y: Expr) -> Expr:
        def rounded(shifted: Expr) -> Expr:
            n = shifted - like(y, ROUND)
            power = float_of(tirx.shift_left(bits_of(shifted), int_like(y, 23)) + int_like(y, 0x3F800000))
            return let(y - n, lambda r: let(r * polynomial(EXP2M1, r), lambda q: let(power, lambda p: combine(p, q))))

        return let(y + like(y, ROUND), rounded)

    return let(exponent, reduced)
