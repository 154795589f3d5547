"""Arithmetic, comparison and functions of one element. What repeats is computed once: see `Spread`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jax import lax
from tvm import ir, relax, tirx

from ....division import trunc_divide, trunc_modulo
from ....extremes import is_nan
from ....relay_ops.operator import number_of
from ...meaning import scalar, special
from ...meaning.builder import expr_dtype, expr_shape
from ...meaning.comparison import COMPARISONS
from ...meaning.constant import Constant
from ...meaning.pointwise import Scalar, const, const_like, dtype_of, in_float32, pointwise
from ...meaning.power import power_of_integers
from ...meaning.unary import negative, unary
from .._primitive import Primitive
from .._registry import Converter, converter
from .._values import Spread, Value
from .movement import reshaped

_UNARY = {
    name: name
    for name in (
        *("ceil", "floor", "sqrt", "rsqrt", "exp", "log", "erf", "sin", "cos", "tan", "asin", "acos", "atan"),
        *("asinh", "acosh", "sinh", "cosh", "atanh", "sign", "expm1", "log1p", "tanh"),
    )
} | {"logistic": "sigmoid"}
_FUNCTIONS: dict[str, Callable[[Scalar], Scalar]] = {
    "cbrt": special.cbrt,
    "erf_inv": special.erf_inv,
    "lgamma": special.lgamma,
    "digamma": special.digamma,
    "exp2": tirx.exp2,
}
# Of numbers, and of bools.
_ARITHMETIC = {
    "add": (relax.op.add, relax.op.logical_or),
    "add_any": (relax.op.add, relax.op.logical_or),
    "sub": (relax.op.subtract, relax.op.logical_xor),
    "mul": (relax.op.multiply, relax.op.logical_and),
    "max": (relax.op.maximum, relax.op.logical_or),
    "min": (relax.op.minimum, relax.op.logical_and),
}


def joined(c: Primitive, function: Callable[..., relax.Expr], places: Sequence[int]) -> Value:
    """function(operands) that broadcasts, as a value of the equation's shape."""
    return c.spread(c.emit(function(*(c.operand(i) for i in places))), c.shape)


def elements(c: Primitive, function: Callable[..., Scalar], places: Sequence[int]) -> Value:
    """As `joined`, for a function of one element of each operand."""
    return c.spread(pointwise(c, function, *(c.operand(i) for i in places)), c.shape)


def _function(name: str) -> Converter:
    return lambda c: c.spread(unary(c, name, c.operand(0)), c.shape)


def _of_element(function: Callable[[Scalar], Scalar]) -> Converter:
    return lambda c: elements(c, in_float32(function), [0])


def _comparison(function: Callable[..., relax.Expr]) -> Converter:
    return lambda c: c.spread(c.emit(function(c.operand(0), c.operand(1))), c.shape)


def by_type(of_numbers: Callable[..., relax.Expr], of_bools: Callable[..., relax.Expr]) -> Converter:
    """One function of two tensors of numbers, another one of bools."""
    return lambda c: joined(c, of_bools if c.dtype == "bool" else of_numbers, [0, 1])


for _name, _source in _UNARY.items():
    converter(_name)(_function(_source))
for _name, _element in _FUNCTIONS.items():
    converter(_name)(_of_element(_element))
for _name, _compare in COMPARISONS.items():
    converter(_name)(_comparison(_compare))
for _name, _both in _ARITHMETIC.items():
    if _name not in ("add", "sub", "mul"):
        converter(_name)(by_type(*_both))


@converter("add", "sub", "mul")
def linear_step(c: Primitive) -> Value:
    """Without what changes nothing; a bias of several axes is added to the product that was split into them.

    0 + x is left to floating-point numbers: it turns -0 into 0.
    """
    for x, other in ((0, 1), (1, 0)) if c.op != "sub" else ((0, 1),):
        number = c.number(other)
        nothing = number == 1 if c.op == "mul" else number == 0 and ("int" in c.dtype or c.op == "sub")
        if nothing and c.dtype != "bool" and len(c.shape_of(x)) == len(c.shape):
            return c.spread(c.operand(x), c.shape)
        if c.op == "add" and (added := _bias_before_split(c, x, other)) is not None:
            return added
        if c.op == "mul" and (product := _gelu_step(c, x, other)) is not None:
            return product
    return by_type(*_ARITHMETIC[c.op])(c)


def _bias_before_split(c: Primitive, x: int, other: int) -> relax.Expr | None:
    """reshape(y) + bias [h, d] as reshape(y + bias [h * d]), where y [..., h * d] is a product."""
    bias, split = c.values[other], c.bound_to(c.operand(x))
    bias = bias.small if isinstance(bias, Spread) else bias
    if not isinstance(bias, Constant) or not bias.name or len(bias.shape) < 2:
        return None
    if not isinstance(split, relax.Call) or getattr(split.op, "name", "") != "relax.reshape":
        return None
    product, width = split.args[0], int(np.prod(bias.shape))
    last, whole = expr_shape(product)[-1:], expr_shape(split)
    if last != [width] or tuple(whole[len(whole) - len(bias.shape) :]) != bias.shape:
        return None
    flat = reshaped(c, bias, [width])
    return c.reshape(c.emit(relax.op.add(product, c.walker.expr_of(flat))), c.shape)


@converter("neg", "abs")
def negate_or_size(c: Primitive) -> Value:
    if c.op == "abs" and c.dtype.startswith(("uint", "bool")):
        return c.values[0]
    return c.spread(negative(c, c.operand(0)), c.shape) if c.op == "neg" else joined(c, relax.op.abs, [0])


@converter("square")
def square(c: Primitive) -> Value:
    x = c.operand(0)
    return c.spread(c.emit(relax.op.multiply(x, x)), c.shape)


@converter("integer_pow")
def integer_pow(c: Primitive) -> Value:
    """By squaring; a negative exponent of the inverse."""
    x, count = c.operand(0), abs(int(c.params["y"]))
    if count == 0:
        return c.spread(c.scalar(1, c.dtype), c.shape)
    power: relax.Expr | None = None
    while count:
        if count & 1:
            power = x if power is None else c.emit(relax.op.multiply(power, x))
        count >>= 1
        x = c.emit(relax.op.multiply(x, x)) if count else x
    if c.params["y"] < 0:
        power = c.emit(relax.op.divide(c.scalar(1, c.dtype), power))
    return c.spread(power, c.shape)


@converter("pow")
def power(c: Primitive) -> Value:
    x, exponent = c.operand(0), c.operand(1)
    if "float" not in c.dtype:
        return c.spread(power_of_integers(c, x, exponent), c.shape)
    exponent = c.cast(exponent, c.dtype)
    return c.spread(pointwise(c, in_float32(tirx.pow), x, exponent), c.shape)


def _by_zero(
    function: Callable[[ir.Expr, ir.Expr], ir.Expr], otherwise: Callable[[Scalar], Scalar]
) -> Callable[..., Scalar]:
    def divided(a: Scalar, b: Scalar) -> Scalar:
        return tirx.Select(b == const_like(0, b), otherwise(a), function(a, b))

    return divided


def _quotient(c: Primitive, plain: Callable[..., ir.Expr], guarded: Callable[..., Scalar]) -> Value:
    """`guarded` names its operands several times; a known divisor needs no guard, unless it is 0 or -1.

    jax writes a // b and a % b in several steps, so that guards in a row grow like a power in the code.
    """
    divisor = c.number(1)
    if divisor is None or divisor in (0, -1):
        return elements(c, guarded, [0, 1])
    return elements(c, lambda a: plain(a, const_like(divisor, a)), [0])


@converter("div")
def divide(c: Primitive) -> Value:
    """Integers are rounded to 0; x / 0 has all bits set, as on jax's CPU."""
    if "float" in c.dtype:
        return joined(c, relax.op.divide, [0, 1])

    def all_bits(x: Scalar) -> Scalar:
        dtype = dtype_of(x)
        return const(np.iinfo(dtype).max if dtype.startswith("uint") else -1, dtype)

    return _quotient(c, tirx.truncdiv, _by_zero(trunc_divide, all_bits))


@converter("rem")
def remainder(c: Primitive) -> Value:
    """The sign of the dividend; x % 0 = x for integers."""
    if "float" in c.dtype:
        return elements(c, in_float32(tirx.Mod), [0, 1])
    return _quotient(c, tirx.truncmod, _by_zero(trunc_modulo, lambda x: x))


@converter("atan2")
def atan2(c: Primitive) -> Value:
    return elements(c, in_float32(tirx.atan2), [0, 1])


@converter("nextafter")
def next_after(c: Primitive) -> Value:
    c.refuse_unless(c.dtype == "float32", f"elements of {c.dtype}")
    return elements(c, special.next_after, [0, 1])


@converter("round")
def round_(c: Primitive) -> Value:
    """To the nearest integer; halves to the even one, or away from 0."""
    if c.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return c.spread(unary(c, "round", c.operand(0)), c.shape)
    return elements(c, in_float32(scalar.round_half_away), [0])


@converter("erfc")
def erfc(c: Primitive) -> Value:
    """Of large numbers to its own last digits, where 1 - erf(x) is 0."""
    x = c.operand(0)
    out = pointwise(c, in_float32(special.erfc), x)
    c.walker.erfc_operands[out] = x
    return c.spread(out, c.shape)


def _gelu_step(c: Primitive, value: int, other: int) -> Value | None:
    """A multiple of x times erfc of one, by 1 - erf, by which lifts know GELU: what is lost is small beside x."""
    inner = c.walker.erfc_operands.get(c.operand(value))
    factor = c.operand(other)
    if inner is None or not _multiplied(c, inner).same_as(_multiplied(c, factor)):
        return None
    wide = c.emit(relax.op.subtract(c.scalar(1, c.dtype), unary(c, "erf", inner)))
    return c.spread(c.emit(relax.op.multiply(factor, wide)), c.shape)


def _multiplied(c: Primitive, x: relax.Expr) -> relax.Expr:
    """What `x` is a multiple of, by numbers."""
    inner = c.bound_to(x)
    if not isinstance(inner, relax.Call) or not isinstance(inner.op, ir.Op):
        return x
    name, numbers = inner.op.name, [number_of(arg) is not None for arg in inner.args]
    if name == "relax.negative" or name in ("relax.multiply", "relax.divide") and numbers[1]:
        return _multiplied(c, inner.args[0])
    return _multiplied(c, inner.args[1]) if name == "relax.multiply" and numbers[0] else x


@converter("is_finite")
def is_finite(c: Primitive) -> Value:
    if "float" not in c.dtype_of(0):
        return c.spread(c.scalar(True, "bool"), c.shape)

    def finite(x: Scalar) -> Scalar:
        wide = x.astype("float32") if dtype_of(x) == "bfloat16" else x
        return tirx.abs(wide) < const(math.inf, dtype_of(wide))

    return elements(c, finite, [0])


@converter("select_n")
def select_n(c: Primitive) -> Value:
    """The case that the first operand names, by bool or number."""
    known = c.number(0)
    if known is not None and c.rank(1) == len(c.shape):
        return c.values[1 + min(max(int(known), 0), len(c.values) - 2)]
    which, cases = c.operand(0), [c.operand(i) for i in range(1, len(c.values))]
    out = cases[-1]
    for place in range(len(cases) - 2, -1, -1):
        if expr_dtype(which) == "bool":
            out = c.emit(relax.op.where(which, out, cases[place]))
        else:
            here = c.emit(relax.op.less_equal(which, c.scalar(place, expr_dtype(which))))
            out = c.emit(relax.op.where(here, cases[place], out))
    return c.spread(out, c.shape)


@converter("clamp")
def clamp(c: Primitive) -> Value:
    """min(max(x, low), high), NaN where any is."""
    low, x, high = (c.operand(i) for i in range(3))
    return c.spread(c.emit(relax.op.minimum(c.emit(relax.op.maximum(x, low)), high)), c.shape)


@converter("convert_element_type")
def convert_element_type(c: Primitive) -> Value:
    """A number outside of an integer type becomes its nearest, NaN becomes 0."""
    source, target = c.dtype_of(0), c.dtype
    if source == target:
        return c.values[0]
    x = c.operand(0)
    if target == "bool":
        return c.spread(c.emit(relax.op.not_equal(x, c.scalar(0, source))), c.shape)
    if "float" in source and "float" not in target:
        return elements(c, lambda v: _saturated(v, target), [0])
    return c.spread(c.emit(relax.op.astype(x, target)), c.shape)


def _saturated(x: Scalar, dtype: str) -> Scalar:
    x = x if dtype_of(x) == "float64" else x.astype("float32")
    info = np.iinfo(dtype)
    low, behind = const_like(float(info.min), x), const_like(float(info.max) + 1, x)
    inside = tirx.all(x >= low, x < behind)
    whole = tirx.Select(inside, x, const_like(0, x)).astype(dtype)
    outside = tirx.Select(x < low, const(int(info.min), dtype), const(int(info.max), dtype))
    return tirx.Select(is_nan(x), const(0, dtype), tirx.Select(inside, whole, outside))


@converter("reduce_precision")
def reduce_precision(c: Primitive) -> Value:
    """Rounded to another type of floating-point numbers and back."""
    kinds = {(8, 23): "float32", (5, 10): "float16", (8, 7): "bfloat16", (11, 52): "float64"}
    bits = (int(c.params["exponent_bits"]), int(c.params["mantissa_bits"]))
    c.refuse_unless(bits in kinds, f"{bits[0]} exponent bits and {bits[1]} mantissa bits")
    if kinds[bits] in (c.dtype, "float64" if c.dtype != "float64" else ""):
        return c.values[0]
    short = c.emit(relax.op.astype(c.operand(0), kinds[bits]))
    return c.spread(c.emit(relax.op.astype(short, c.dtype)), c.shape)


@converter(
    *("copy", "copy_p", "stop_gradient", "optimization_barrier", "name", "sharding_constraint", "layout_constraint"),
    *("device_put", "reshard", "pvary"),
)
def same(c: Primitive) -> list[Value]:
    return c.values
