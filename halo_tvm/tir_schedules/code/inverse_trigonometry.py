"""atan, atan2, asin and acos as float32 expressions that vectorise.

Computation
    atan of what is beyond tan(pi/8) or tan(3 pi/8) by that of another angle, a quotient; a polynomial for the rest.
    atan2 by the quotient of the smaller and the larger of its arguments. asin beyond 1/2 by that of half the angle,
    a square root; acos by asin where nothing cancels
Numerics
    over all float32 inputs: atan, atan2 and asin 3e-7 relative, acos 3e-7. Zeros and infinities of either sign as in C;
    NaN stays NaN, and is what asin and acos make of numbers beyond 1
References
    S. L. Moshier's Cephes library (atanf, asinf)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from .bits import bits_of, equal, int_like, like, with_sign_of
from .lets import hoist_lets, let
from .vector_math import polynomial

# (atan(t) - t) / t^3 on |t| <= tan(pi/8) and (asin(t) - t) / t^3 on |t| <= 1/2, as polynomials in t^2
ARC_TANGENT = (-3.33329491539e-1, 1.99777106478e-1, -1.38776856032e-1, 8.05374449538e-2)
ARC_SINE = (1.6666752422e-1, 7.4953002686e-2, 4.5470025998e-2, 2.4181311049e-2, 4.2163199048e-2)
_EIGHTH, _THREE_EIGHTHS = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)


def atan(x: Expr) -> Expr:
    """The angle in -pi/2 to pi/2 whose tangent is x."""
    return hoist_lets(let(x, lambda x: with_sign_of(x, _atan_of_magnitude(tirx.abs(x)))))


def atan2(y: Expr, x: Expr, keep: Callable[[Expr], Expr] = lambda value: value) -> Expr:
    """The angle in -pi to pi of the point (x, y); `keep` is given what is to be stored, to be evaluated once."""

    def angle(y: Expr, x: Expr) -> Expr:
        across, up = tirx.abs(x), tirx.abs(y)

        def of(small: Expr, large: Expr) -> Expr:
            # Both zero, or both infinite: there is no quotient, but an angle.
            quotient = tirx.Select(tirx.all(*(equal(v, 0.0) for v in (small, large))), like(x, 0.0), small / large)
            return tirx.Select(tirx.all(*(equal(v, math.inf) for v in (small, large))), like(x, 1.0), quotient)

        def turned(inner: Expr) -> Expr:
            upper = tirx.Select(up > across, like(x, math.pi / 2) - inner, inner)
            return let(upper, lambda a: tirx.Select(_is_negative(x), like(x, math.pi) - a, a))

        small, large = tirx.Select(up > across, across, up), tirx.Select(up > across, up, across)
        ratio = let(small, lambda s: let(large, lambda l: of(s, l)))
        return with_sign_of(y, let(keep(let(keep(ratio), _atan_of_magnitude)), turned))

    return hoist_lets(let(y, lambda y: let(x, lambda x: angle(y, x))))


def asin(x: Expr) -> Expr:
    """The angle in -pi/2 to pi/2 whose sine is x."""

    def body(x: Expr) -> Expr:
        def of(a: Expr) -> Expr:
            beyond = a > like(x, 0.5)
            return let(_asin_of(a), lambda p: tirx.Select(beyond, like(x, math.pi / 2) - (p + p), p))

        return with_sign_of(x, let(tirx.abs(x), of))

    return hoist_lets(let(x, body))


def acos(x: Expr) -> Expr:
    """The angle in 0 to pi whose cosine is x."""

    def body(x: Expr) -> Expr:
        def of(a: Expr, p: Expr) -> Expr:
            near = like(x, math.pi / 2) - with_sign_of(x, p)
            far = tirx.Select(x > like(x, 0.0), p + p, like(x, math.pi) - (p + p))
            return tirx.Select(a > like(x, 0.5), far, near)

        return let(tirx.abs(x), lambda a: let(_asin_of(a), lambda p: of(a, p)))

    return hoist_lets(let(x, body))


def _atan_of_magnitude(a: Expr) -> Expr:
    """atan(a) for 0 <= a."""

    def body(a: Expr) -> Expr:
        far, middle, one = a > like(a, _THREE_EIGHTHS), a > like(a, _EIGHTH), like(a, 1.0)
        above = tirx.Select(far, like(a, -1.0), tirx.Select(middle, a - one, a))
        below = tirx.Select(far, a, tirx.Select(middle, a + one, one))
        begin = tirx.Select(far, like(a, math.pi / 2), tirx.Select(middle, like(a, math.pi / 4), like(a, 0.0)))
        return let(above / below, lambda t: begin + _odd(ARC_TANGENT, t))

    return let(a, body)


def _asin_of(a: Expr) -> Expr:
    """asin(t), t being a up to 1/2, and the sine of half the angle that is left to pi/2 beyond."""
    half = (like(a, 1.0) - a) * like(a, 0.5)
    return let(tirx.Select(a > like(a, 0.5), tirx.sqrt(half), a), lambda t: _odd(ARC_SINE, t))


def _odd(coefficients: tuple[float, ...], t: Expr) -> Expr:
    return let(t * t, lambda square: t + t * square * polynomial(coefficients, square))


def _is_negative(x: Expr) -> Expr:
    """Also of -0."""
    return bits_of(x) < int_like(x, 0)


BUILDERS: dict[str, Callable[[Expr], Expr]] = {"atan": atan, "asin": asin, "acos": acos}
