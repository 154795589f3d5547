"""One element in, one element out: arithmetic, comparison, logic, bits and activations, broadcast as NumPy does."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax, tirx

from ... import division
from ...extremes import maximum, minimum
from ..meaning import scalar
from ..meaning.broadcast import aligned
from ..meaning.builder import expr_dtype
from ..meaning.pointwise import HALVES, Scalar, const, const_like, dtype_of, in_float32, pointwise, widened
from ..meaning.unary import unary
from ._node import Node
from ._registry import converter

# Operators of one operand that `meaning.unary` has under the same name.
_UNARY = (
    *("Ceil", "Floor", "Sqrt", "Exp", "Log", "Erf", "Sigmoid", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Asinh"),
    *("Acosh", "Sinh", "Cosh", "Tanh", "Atanh", "Softplus", "Sign", "Mish", "Softsign", "Round"),
)


@converter(*_UNARY)
def of_one(node: Node) -> relax.Expr:
    return unary(node, node.op.lower(), node.x(0))


for _name, _convert in {
    "Abs": lambda node: node.x(0) if node.dtype(0).startswith("uint") else relax.op.abs(node.x(0)),
    "Neg": lambda node: relax.op.negative(node.x(0)),
    "Reciprocal": lambda node: relax.op.divide(relax.const(1, node.dtype(0)), node.x(0)),
    "Not": lambda node: relax.op.logical_not(node.x(0)),
    "BitwiseNot": lambda node: pointwise(node, lambda x: ~x, node.x(0)),
    "IsNaN": lambda node: relax.op.isnan(widened(node, node.x(0))),
    "LeakyRelu": lambda node: relax.op.nn.leakyrelu(node.x(0), node.attr("alpha", 0.01)),
    "HardSwish": lambda node: pointwise(node, in_float32(lambda x: x * scalar.hard_sigmoid(x, 1 / 6, 0.5)), node.x(0)),
    "Where": lambda node: relax.op.where(*aligned(node, node.xs())),
}.items():
    converter(_name)(_convert)


@converter("IsInf")
def is_inf(node: Node) -> relax.Expr:
    wanted = [v for v, name in ((math.inf, "detect_positive"), (-math.inf, "detect_negative")) if node.attr(name, 1)]
    if not wanted:
        return relax.op.full(relax.ShapeExpr(node.shape(0)), relax.const(False, "bool"), "bool")

    def compare(x: Scalar) -> Scalar:
        return tirx.any(*(x == const(v, dtype_of(x)) for v in wanted))

    return pointwise(node, compare, widened(node, node.x(0)))


# Two operands.


def operands(node: Node) -> list[relax.Expr]:
    """The two inputs, aligned; before version 7 `axis` says where the second begins."""
    a, b = node.x(0), node.x(1)
    if node.opset < 7 and node.has_attr("axis") and node.attr("broadcast", 0):
        after = node.rank(0) - node.axis(node.attr("axis"), node.rank(0)) - node.rank(1)
        if after > 0:
            b = node.emit(relax.op.reshape(b, [*node.shape(1), *[1] * after]))
    return aligned(node, [a, b])


_BINARY = {
    "Add": relax.op.add,
    "Sub": relax.op.subtract,
    "Mul": relax.op.multiply,
    "Equal": relax.op.equal,
    "Less": relax.op.less,
    "LessOrEqual": relax.op.less_equal,
    "Greater": relax.op.greater,
    "GreaterOrEqual": relax.op.greater_equal,
    "And": relax.op.logical_and,
    "Or": relax.op.logical_or,
    "Xor": relax.op.logical_xor,
    "BitwiseAnd": relax.op.bitwise_and,
    "BitwiseOr": relax.op.bitwise_or,
    "BitwiseXor": relax.op.bitwise_xor,
}


@converter(*_BINARY)
def binary(node: Node) -> relax.Expr:
    return _BINARY[node.op](*operands(node))


@converter("Div")
def divide(node: Node) -> relax.Expr:
    a, b = operands(node)
    if "float" in expr_dtype(a):
        return relax.op.divide(a, b)
    if node.is_known(1) and not np.isin(node.constant(1), (0, -1)).any():
        return pointwise(node, tirx.truncdiv, a, b)
    return pointwise(node, division.trunc_divide, a, b)


@converter("Mod")
def modulo(node: Node) -> relax.Expr:
    a, b = operands(node)
    fmod = node.attr("fmod", 0)
    if "float" in expr_dtype(a):
        return pointwise(node, in_float32(tirx.Mod if fmod else scalar.floor_modulo), a, b)
    truncated = fmod or expr_dtype(a).startswith("uint")
    return pointwise(node, division.trunc_modulo if truncated else division.floor_modulo, a, b)


@converter("BitShift")
def bit_shift(node: Node) -> relax.Expr:
    """Amounts outside 0 .. bits - 1 shift everything out."""
    left = node.attr("direction") == "LEFT"

    return pointwise(node, lambda a, b: scalar.shift(a, b, left), *operands(node))


@converter("PRelu")
def prelu(node: Node) -> relax.Expr:
    x, slope = node.xs()
    if node.opset < 7 and node.rank(1) == 1:  # one for each channel, or one for all
        slope = node.reshape(slope, [node.shape(1)[0], *[1] * (node.rank(0) - 2)])
    return pointwise(node, lambda x, slope: tirx.Select(x < const_like(0, x), x * slope, x), x, slope)


# Any number of operands.


@converter("Sum", "Mean")
def total(node: Node) -> relax.Expr:
    out = node.x(0)
    for x in node.xs()[1:]:
        out = node.emit(relax.op.add(*aligned(node, [out, x])))
    count = len(node.inputs)
    return out if node.op == "Sum" or count == 1 else relax.op.divide(out, relax.const(count, node.dtype(0)))


@converter("Max", "Min")
def extreme(node: Node) -> relax.Expr:
    """NaN when any operand is."""
    function = maximum if node.op == "Max" else minimum
    exact = relax.op.maximum if node.op == "Max" else relax.op.minimum
    out = node.x(0)
    for x in node.xs()[1:]:
        if "float" in expr_dtype(x):
            out = pointwise(node, in_float32(function), out, x)
        else:
            out = node.emit(exact(*aligned(node, [out, x])))
    return out


@converter("Clip")
def clip(node: Node) -> relax.Expr:
    """min(max, max(min, x)), NaN kept; bounds are attributes before version 11 and may be absent."""
    x = node.x(0)
    dtype = expr_dtype(x)
    bounds = []
    for index, name in ((1, "min"), (2, "max")):
        if node.has(index):
            bounds.append(node.x(index))
        elif node.has_attr(name):
            bounds.append(relax.const(node.attr(name), dtype))
        else:
            bounds.append(None)
    low, high = bounds

    def clipped(x: Scalar, *given: Scalar) -> Scalar:
        rest = list(given)
        # The comparison that fails for NaN leaves x as it is.
        if low is not None:
            bound = rest.pop(0)
            x = tirx.Select(x < bound, bound, x)
        if high is not None:
            bound = rest.pop(0)
            x = tirx.Select(x > bound, bound, x)
        return x

    given = [_first(node, b) for b in (low, high) if b is not None]
    return pointwise(node, clipped, x, *given) if given else x


def _first(node: Node, x: relax.Expr) -> relax.Expr:
    """A bound of one element as a scalar."""
    return node.emit(relax.op.reshape(x, ())) if len(x.ty.shape.values) else x


# Activations.


@converter("Relu")
def relu(node: Node) -> relax.Expr:
    x = node.x(0)
    return relax.op.nn.relu(x) if "float" in expr_dtype(x) else relax.op.maximum(x, relax.const(0, expr_dtype(x)))


@converter("HardSigmoid")
def hard_sigmoid(node: Node) -> relax.Expr:
    alpha, beta = node.attr("alpha", 0.2), node.attr("beta", 0.5)
    return pointwise(node, in_float32(lambda x: scalar.hard_sigmoid(x, alpha, beta)), node.x(0))


@converter("Elu", "Selu", "Celu")
def exponential(node: Node) -> relax.Expr:
    gamma = 1.0
    if node.op == "Selu":
        alpha, gamma = node.attr("alpha", 1.67326319217681884765625), node.attr("gamma", 1.05070102214813232421875)
    else:
        alpha = node.attr("alpha", 1.0)

    slope = 1 / alpha if node.op == "Celu" and alpha != 1 else 1.0
    return pointwise(node, in_float32(lambda x: scalar.elu(x, alpha, gamma, slope)), node.x(0))


@converter("ThresholdedRelu")
def thresholded_relu(node: Node) -> relax.Expr:
    alpha = node.attr("alpha", 1.0)
    return pointwise(node, in_float32(lambda x: tirx.Select(x <= const_like(alpha, x), const_like(0, x), x)), node.x(0))


@converter("Shrink")
def shrink(node: Node) -> relax.Expr:
    lambd, bias, dtype = node.attr("lambd", 0.5), node.attr("bias", 0.0), node.dtype(0)

    def function(x: Scalar) -> Scalar:
        wide = x if "float" in dtype_of(x) else x.astype("float64")
        zero = const_like(0, wide)
        below, above = wide + const_like(bias, wide), wide - const_like(bias, wide)
        inner = tirx.Select(wide > const_like(lambd, wide), above, zero)
        return tirx.Select(wide < const_like(-lambd, wide), below, inner).astype(dtype_of(x))

    return pointwise(node, in_float32(function), node.x(0)) if dtype in HALVES else pointwise(node, function, node.x(0))
