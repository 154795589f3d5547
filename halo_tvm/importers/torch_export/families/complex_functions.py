"""Functions of complex numbers, in polar form or by those of their parts."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax, tirx

from ...meaning import scalar, special
from ...meaning.pointwise import Scalar, const_like, pointwise
from .._call import Call, constant
from .._complex import ComplexCall, Pair, PartCall, converted, of_both
from .._registry import converter

Parts = tuple[relax.Expr, relax.Expr]


def _angle(x: Scalar, y: Scalar) -> Scalar:
    return tirx.atan2(y, x)


@converter("abs.default", of_complex=True)
def absolute(c: Call) -> relax.Expr:
    return pointwise(c, special.hypot, *ComplexCall(c).pair("self"), name="abs")


@converter("angle.default", of_complex=True)
def angle(c: Call) -> relax.Expr:
    return pointwise(c, _angle, *ComplexCall(c).pair("self"), name="angle")


class _OfMagnitudes(PartCall):
    """The same call of the lengths of numbers."""

    def __getitem__(self, name: str) -> object:
        if name == "self":
            return pointwise(self, special.hypot, *self._pairs.pair("self"), name="abs")
        return super().__getitem__(name)


@converter("linalg_vector_norm.default", "norm.Scalar", "norm.ScalarOpt_dim", of_complex=True)
def norm(c: Call) -> relax.Expr:
    return converted(_OfMagnitudes(c))


@converter("polar.default", of_complex=True)
def polar(c: Call) -> Pair:
    dtype = ComplexCall(c).dtype
    return _from_polar(c, c.tensor("abs", dtype), c.tensor("angle", dtype))


def _from_polar(c: Call, length: relax.Expr, angle: relax.Expr) -> Pair:
    parts = (c.emit(relax.op.multiply(length, c.emit(f(angle)))) for f in (relax.op.cos, relax.op.sin))
    return Pair.of(*parts)


@converter("sgn.default", of_complex=True)
def sgn(c: Call) -> Pair:
    """z / |z|, and 0 of 0."""
    pair = ComplexCall(c).pair("self")

    def part(of_imaginary: bool) -> relax.Expr:
        def value(x: Scalar, y: Scalar) -> Scalar:
            length, zero = special.hypot(x, y), const_like(0, x)
            own = y if of_imaginary else x
            return tirx.Select(
                length.equal(zero), zero, own / tirx.Select(length.equal(zero), const_like(1, x), length)
            )

        return pointwise(c, value, *pair, name="sgn")

    return Pair.of(part(False), part(True))


@converter("exp.default", "exp2.default", of_complex=True)
def exp(c: Call) -> Pair:
    z = ComplexCall(c).pair("self")
    return _exp(c, z if c.op == "exp" else _scaled(c, z, math.log(2)))


def _exp(c: Call, z: Parts) -> Pair:
    return _from_polar(c, c.emit(relax.op.exp(z[0])), z[1])


@converter("log.default", "log2.default", "log10.default", of_complex=True)
def log(c: Call) -> Pair:
    parts = _log(c, ComplexCall(c).pair("self"))
    base = {"log2": 2.0, "log10": 10.0}.get(c.op)
    return Pair.of(*(_scaled(c, parts, 1 / math.log(base)) if base else parts))


def _scaled(c: Call, z: Parts, factor: float) -> Parts:
    real, imaginary = (c.emit(relax.op.multiply(part, constant(factor, str(part.ty.dtype)))) for part in z)
    return real, imaginary


def _log(c: Call, z: Parts) -> Parts:
    length = pointwise(c, special.hypot, *z, name="abs")
    return c.emit(relax.op.log(length)), pointwise(c, _angle, *z, name="angle")


@converter("sqrt.default", of_complex=True)
def sqrt(c: Call) -> Pair:
    return Pair.of(*_sqrt(c, ComplexCall(c).pair("self")))


@converter("reciprocal.default", "rsqrt.default", of_complex=True)
def reciprocal(c: Call) -> Pair:
    z = ComplexCall(c).pair("self")
    return quotient(c, _one(z), z if c.op == "reciprocal" else _sqrt(c, z))


@converter("sigmoid.default", "silu.default", of_complex=True)
def sigmoid(c: Call) -> Pair:
    """1 / (1 + exp(-z)), or z of it."""
    z = ComplexCall(c).pair("self")
    above, below = _one(z), _exp(c, _scaled(c, z, -1.0)).parts
    assert below is not None, "an exponential has its parts"
    return quotient(c, above if c.op == "sigmoid" else z, (c.emit(relax.op.add(below[0], above[0])), below[1]))


def _one(z: Parts) -> Parts:
    dtype = str(z[0].ty.dtype)
    return constant(1, dtype), constant(0, dtype)


def quotient(c: Call, x: Parts, y: Parts) -> Pair:
    """By Smith's method: the larger part of the divisor is divided by, so that no square overflows."""

    def part(of_imaginary: bool) -> relax.Expr:
        def value(a: Scalar, b: Scalar, p: Scalar, q: Scalar) -> Scalar:
            by_real = tirx.abs(p) >= tirx.abs(q)
            ratio = tirx.Select(by_real, q / p, p / q)
            below = tirx.Select(by_real, p + q * ratio, q + p * ratio)
            if of_imaginary:
                return tirx.Select(by_real, b - a * ratio, b * ratio - a) / below
            return tirx.Select(by_real, a + b * ratio, a * ratio + b) / below

        return pointwise(c, value, *x, *y, name="quotient")

    return Pair.of(part(False), part(True))


def _sqrt(c: Call, z: Parts) -> Parts:
    """The root of the right half plane, without the difference of two nearly equal numbers."""

    def part(of_imaginary: bool) -> relax.Expr:
        def value(x: Scalar, y: Scalar) -> Scalar:
            zero, half = const_like(0, x), const_like(0.5, x)
            more = tirx.sqrt((special.hypot(x, y) + tirx.abs(x)) * half)
            less = half * tirx.abs(y) / tirx.Select(more > zero, more, const_like(1, x))
            if of_imaginary:
                length = tirx.Select(x >= zero, less, more)
                return tirx.Select(y < zero, -length, length)
            return tirx.Select(x >= zero, more, less)

        return pointwise(c, value, *z, name="sqrt")

    return part(False), part(True)


@converter("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "square.default", of_complex=True)
def power(c: Call) -> Pair:
    """Small whole exponents by products, a half by the root, others by the logarithm: exp(w log z), 0 of 0."""
    pairs = ComplexCall(c)
    exponent = 2 if c.op == "square" else c["exponent"]
    if isinstance(exponent, int | float) and exponent in range(1, 9):
        return Pair.of(*_whole_power(c, pairs.pair("self"), int(exponent)))
    if exponent == 0.5:
        return Pair.of(*_sqrt(c, pairs.pair("self")))
    z, w = pairs.pair("self"), pairs.split(exponent)
    (length, angle), op = _log(c, z), relax.op

    def product(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return c.emit(op.multiply(a, b))

    real = c.emit(op.subtract(product(length, w[0]), product(angle, w[1])))
    found = _exp(c, (real, c.emit(op.add(product(angle, w[0]), product(length, w[1])))))
    assert found.parts is not None, "a power has its parts"
    zero, one = constant(0, pairs.dtype), constant(1, pairs.dtype)

    def of_zero(part: relax.Expr, of_imaginary: bool) -> relax.Expr:
        """0 to the power of 0 is 1, and of anything else 0."""

        def value(x: Scalar, y: Scalar, p: Scalar, q: Scalar, found: Scalar, zero: Scalar, one: Scalar) -> Scalar:
            at_zero = zero if of_imaginary else tirx.Select(tirx.all(p.equal(zero), q.equal(zero)), one, zero)
            return tirx.Select(tirx.all(x.equal(zero), y.equal(zero)), at_zero, found)

        return pointwise(c, value, *z, *w, part, zero, one, name="power")

    return Pair.of(of_zero(found.parts[0], False), of_zero(found.parts[1], True))


def _whole_power(c: Call, z: Parts, exponent: int) -> Parts:
    x, y = a, b = z
    op = relax.op
    for _ in range(exponent - 1):
        real = c.emit(op.subtract(c.emit(op.multiply(x, a)), c.emit(op.multiply(y, b))))
        y, x = c.emit(op.add(c.emit(op.multiply(x, b)), c.emit(op.multiply(y, a)))), real
    return x, y


# Circular and hyperbolic functions: of one part by the one kind, of the other part by the other.


def _by_parts_of(
    real: Callable[[Scalar, Scalar], Scalar], imaginary: Callable[[Scalar, Scalar], Scalar]
) -> Callable[[Call], Pair]:
    def convert(c: Call) -> Pair:
        pair = ComplexCall(c).pair("self")
        return Pair.of(*(pointwise(c, part, *pair, name=c.op) for part in (real, imaginary)))

    return convert


def _tangent(x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    """Both parts of tanh(x + iy)."""
    one = const_like(1, x)
    t, s = tirx.tanh(x), tirx.tan(y)
    below = one + t * t * s * s
    return t * (one + s * s) / below, s * (one - t * t) / below


for _name, _parts in {
    "sin": (lambda x, y: tirx.sin(x) * scalar.cosh(y), lambda x, y: tirx.cos(x) * scalar.sinh(y)),
    "cos": (lambda x, y: tirx.cos(x) * scalar.cosh(y), lambda x, y: -tirx.sin(x) * scalar.sinh(y)),
    "sinh": (lambda x, y: scalar.sinh(x) * tirx.cos(y), lambda x, y: scalar.cosh(x) * tirx.sin(y)),
    "cosh": (lambda x, y: scalar.cosh(x) * tirx.cos(y), lambda x, y: scalar.sinh(x) * tirx.sin(y)),
    "tanh": (lambda x, y: _tangent(x, y)[0], lambda x, y: _tangent(x, y)[1]),
    "tan": (lambda x, y: _tangent(y, x)[1], lambda x, y: _tangent(y, x)[0]),
}.items():
    converter(f"{_name}.default", of_complex=True)(_by_parts_of(*_parts))


# Questions.


@converter("eq.Tensor", "eq.Scalar", "ne.Tensor", "ne.Scalar", of_complex=True)
def compared(c: Call) -> relax.Expr:
    pairs, is_equal = ComplexCall(c), c.op == "eq"
    compare, both = (relax.op.equal, relax.op.logical_and) if is_equal else (relax.op.not_equal, relax.op.logical_or)
    parts = [c.emit(compare(a, b)) for a, b in zip(pairs.pair("self"), pairs.pair("other"))]
    return c.broadcast(c.emit(both(*parts)), c.shape)


@converter("isnan.default", "isinf.default", of_complex=True)
def any_part_is(c: Call) -> relax.Expr:
    return c.emit(relax.op.logical_or(*of_both(c)))


def truth(c: Call, name: str) -> relax.Expr:
    """Whether the argument `name` is not 0."""
    value = c[name]
    if not isinstance(value, Pair):
        return c.as_tensor(value, "bool")
    return c.emit(relax.op.logical_or(*(c.cast(part, "bool") for part in ComplexCall(c).split(value))))


class _OfTruths(Call):
    """The same call of what is not 0."""

    def __init__(self, c: Call) -> None:
        self.__dict__.update(c.__dict__)
        self._call = c

    def __getitem__(self, name: str) -> object:
        return truth(self._call, name) if name in ("self", "other") else super().__getitem__(name)


@converter(
    *(f"{function}.{form}" for function in ("any", "all") for form in ("default", "dim", "dims")),
    *(f"logical_{word}.default" for word in ("and", "or", "xor", "not")),
    of_complex=True,
)
def of_truths(c: Call) -> relax.Expr:
    return converted(_OfTruths(c))
