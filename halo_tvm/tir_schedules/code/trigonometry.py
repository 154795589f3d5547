"""sin, cos and tan as float32 expressions that vectorise, for every argument.

Computation
    x is taken in turns, x / (2 pi) less its nearest integer, in float64: 1 / (2 pi) is cut into pieces of 29 bits,
    whose products with the 24 bits of x are exact, and so is what each product is more than an integer. Five pieces
    are enough for any x; from 2^83 on the first two make integers, and the five behind them are taken. What is left
    is brought within an eighth of a turn of a quarter, and two polynomials in float32 give its sine and cosine.
Numerics
    over all float32 inputs: sin and cos 1.3e-7 relative, tan 2.4e-7. NaN and infinities give NaN
References
    M. H. Payne, R. N. Hanek: Radian reduction for trigonometric functions, SIGNUM Newsletter 18 (1983)
    The polynomials are those of S. L. Moshier's Cephes library (sinf, cosf)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from .bits import equal, int_like, like, with_lanes
from .lets import hoist_lets, let
from .vector_math import polynomial

# 1 / (2 pi) = the sum of PIECES[i] * 2^(-29 (i + 1))
PIECES = (85445659, 240010261, 88048874, 524801235, 249589169, 156865476, 119571452)
_BITS, _AT_ONCE, _DROPPED = 29, 5, 2
_HUGE = 2.0**83
# (sin(t) - t) / t^3 and (cos(t) - 1 + t^2 / 2) / t^4 as polynomials in t^2, |t| <= pi/4
SINE = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
COSINE = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)


def sin(x: Expr) -> Expr:
    """Sine of radians; of -0 it is -0."""

    def body(x: Expr) -> Expr:
        value = _quarters(x, lambda s, c, q: _signed(_has(q, 2), tirx.Select(_has(q, 1), c, s)))
        return tirx.Select(equal(x, 0.0), x, value)

    return hoist_lets(let(x, body))


def cos(x: Expr) -> Expr:
    """Cosine of radians: sine a quarter of a turn later."""

    def of(s: Expr, c: Expr, q: Expr) -> Expr:
        return _signed(_has(q + int_like(x, 1), 2), tirx.Select(_has(q, 1), s, c))

    return hoist_lets(let(x, lambda x: _quarters(x, of)))


def tan(x: Expr) -> Expr:
    """Tangent of radians; of -0 it is -0."""

    def body(x: Expr) -> Expr:
        value = _quarters(x, lambda s, c, q: tirx.Select(_has(q, 1), -c, s) / tirx.Select(_has(q, 1), s, c))
        return tirx.Select(equal(x, 0.0), x, value)

    return hoist_lets(let(x, body))


def _signed(negative: Expr, value: Expr) -> Expr:
    return let(value, lambda v: tirx.Select(negative, -v, v))


def _has(q: Expr, bit: int) -> Expr:
    return tirx.NE(tirx.bitwise_and(q, int_like(q, bit)), int_like(q, 0))


def _quarters(x: Expr, combine: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """combine(sin(t), cos(t), q), where x is q quarters of a turn and t, |t| <= pi/4."""

    def of_turns(turns: Expr) -> Expr:
        return let(turns - tirx.nearbyint(turns), of_turn)

    def of_turn(turn: Expr) -> Expr:
        return let(tirx.nearbyint(turn * _wide(x, 4.0)), lambda quarter: of_quarter(turn, quarter))

    def of_quarter(turn: Expr, quarter: Expr) -> Expr:
        rest = tirx.Cast(with_lanes("float32", x), (turn - quarter * _wide(x, 0.25)) * _wide(x, 2 * math.pi))
        # of NaN there is no integer
        whole = tirx.Cast(with_lanes("int32", x), tirx.Select(equal(x - x, 0.0), quarter, _wide(x, 0.0)))
        return let(whole, lambda q: let(rest, lambda t: let(t * t, lambda square: of_angle(q, t, square))))

    def of_angle(q: Expr, t: Expr, square: Expr) -> Expr:
        sine = t + t * square * polynomial(SINE, square)
        cosine = like(x, 1.0) - square * like(x, 0.5) + square * square * polynomial(COSINE, square)
        return let(sine, lambda s: let(cosine, lambda c: combine(s, c, q)))

    return let(tirx.Cast(with_lanes("float64", x), x), lambda wide: let(_turns(wide), of_turns))


def _turns(x: Expr) -> Expr:
    """x / (2 pi) in float64, less integers."""
    huge = tirx.abs(x) >= _wide(x, _HUGE)
    scales = [piece * 2.0 ** (-_BITS * (i + 1)) for i, piece in enumerate(PIECES)]
    total = None
    for near, far in zip(scales[:_AT_ONCE], scales[_DROPPED:]):
        product = x * tirx.Select(huge, _wide(x, far), _wide(x, near))
        part = let(product, lambda p: p - tirx.nearbyint(p))
        total = part if total is None else total + part
    return total


def _wide(x: Expr, value: float) -> Expr:
    return like(x, value, "float64")


BUILDERS: dict[str, Callable[[Expr], Expr]] = {"sin": sin, "cos": cos, "tan": tan}
