"""Arithmetic, comparison, logic and element-wise functions, with torch's type promotion."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tvm import relax, tirx

from ...meaning import scalar
from ...meaning.broadcast import aligned
from ...meaning.builder import expr_dtype
from ...meaning.comparison import COMPARISONS
from ...meaning.pointwise import HALVES, Scalar, const_like, in_float32, pointwise, widened
from ...meaning.power import power_of_integers
from ...meaning.unary import FUNCTIONS, negative, unary
from .._call import Call, Number, constant, dtype_name
from .._registry import converter

_SHIFTS = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
Binary = Callable[[relax.Expr, relax.Expr], relax.Expr]

_ARITHMETIC: dict[str, Binary] = {
    "mul.Tensor": relax.op.multiply,
    "mul.Scalar": relax.op.multiply,
    "maximum.default": relax.op.maximum,
    "minimum.default": relax.op.minimum,
}
_COMPARISON: dict[str, Binary] = {
    f"{name}.{overload}": function for name, function in COMPARISONS.items() for overload in ("Tensor", "Scalar")
}
_LOGIC = {
    "and": (relax.op.logical_and, relax.op.bitwise_and),
    "or": (relax.op.logical_or, relax.op.bitwise_or),
    "xor": (relax.op.logical_xor, relax.op.bitwise_xor),
}
_SAME: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "relu": relax.op.nn.relu,
    "silu": relax.op.nn.silu,
}


def _operands(c: Call, dtype: str) -> tuple[relax.Expr, relax.Expr]:
    first = "self" if "self" in c.nodes else next(iter(c.nodes))
    second = next(name for name in ("other", "exponent") if name in c.nodes)
    x, y = aligned(c, [c.tensor(first, dtype), c.tensor(second, dtype)])  # a size may be a number in other words
    return x, y


def _in_float32(c: Call, function: Callable[..., Scalar]) -> relax.Expr:
    """function(self, other) of floating-point numbers; a Python number is not rounded to 16 bits first, as in torch."""
    x, y = _operands(c, "float32" if c.dtype in HALVES else c.dtype)
    return c.cast(pointwise(c, function, x, y), c.dtype)


def _scaled(c: Call, x: relax.Expr) -> relax.Expr:
    """The second operand of add and sub, the first of rsub, times alpha."""
    alpha = c["alpha"] if "alpha" in c.nodes else 1
    c.refuse_unless(not isinstance(alpha, complex), "a factor alpha that is complex")
    return x if alpha in (1, None) else c.emit(relax.op.multiply(x, c.as_tensor(alpha, c.dtype)))


def _register() -> None:
    for name, function in _ARITHMETIC.items():
        on_bool = relax.op.logical_or if name.startswith("max") else relax.op.logical_and

        def arithmetic(c: Call, function: Binary = function, on_bool: Binary = on_bool) -> relax.Expr:
            return c.emit((on_bool if c.dtype == "bool" else function)(*_operands(c, c.dtype)))

        converter(name)(arithmetic)
    for name, function in _COMPARISON.items():
        converter(name)(lambda c, f=function: c.emit(f(*_operands(c, _common(c)))))
    for name, (on_bool, on_bits) in _LOGIC.items():
        converter(f"logical_{name}.default")(lambda c, f=on_bool: c.emit(f(*_operands(c, "bool"))))

        def bits(c: Call, on_bool: Binary = on_bool, on_bits: Binary = on_bits) -> relax.Expr:
            return c.emit((on_bool if c.dtype == "bool" else on_bits)(*_operands(c, c.dtype)))

        converter(
            *(f"bitwise_{name}.{o}" for o in ("Tensor", "Scalar")), *(f"__{name}__.{o}" for o in ("Tensor", "Scalar"))
        )(bits)
    for name in sorted(FUNCTIONS - {"mish", "softplus", "softsign", "sign", "ceil", "floor", "trunc", "round"}):
        converter(f"{name}.default")(lambda c, name=name: unary(c, name, c.tensor("self", c.dtype)))
    for name in ("ceil", "floor", "trunc", "round"):
        converter(f"{name}.default")(lambda c, name=name: _whole(c, name))
    for name, function in _SAME.items():
        converter(f"{name}.default")(lambda c, f=function: c.emit(f(c.tensor("self", c.dtype))))


def _common(c: Call) -> str:
    """The dtype in which torch compares."""
    first, second = c.meta("self"), c.meta("other")
    return dtype_name(torch.result_type(first, second))


_register()


@converter("add.Tensor", "add.Scalar")
def add(c: Call) -> relax.Expr:
    if c["other"] == 0 and isinstance(c["other"], Number) and str(c.tensor("self").ty.dtype) == c.dtype:
        return c.tensor("self")
    x, y = _operands(c, c.dtype)
    return c.emit((relax.op.logical_or if c.dtype == "bool" else relax.op.add)(x, _scaled(c, y)))


@converter("sub.Tensor", "sub.Scalar")
def subtract(c: Call) -> relax.Expr:
    x, y = _operands(c, c.dtype)
    return c.emit(relax.op.subtract(x, _scaled(c, y)))


@converter("rsub.Tensor", "rsub.Scalar")
def reversed_subtract(c: Call) -> relax.Expr:
    x, y = _operands(c, c.dtype)
    return c.emit(relax.op.subtract(y, _scaled(c, x)))


@converter("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def divide_rounded(c: Call) -> relax.Expr:
    """Integers divided by 0 give 0, where eager torch raises."""
    mode = c["rounding_mode"] if "rounding_mode" in c.nodes else "floor"
    x, y = _operands(c, c.dtype)
    if mode is None:
        return c.emit(relax.op.divide(x, y))
    if "float" not in c.dtype:
        return c.emit((relax.op.floor_divide if mode == "floor" else relax.op.divide)(x, y))
    return _in_float32(c, scalar.floor_divide if mode == "floor" else lambda a, b: tirx.trunc(a / b))


@converter("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(c: Call) -> relax.Expr:
    """The sign of the divisor, as in Python."""
    x, y = _operands(c, c.dtype)
    if "float" not in c.dtype:
        return c.emit(relax.op.floor_mod(x, y))
    # Here torch rounds a Python number to 16 bits first, and a quotient multiplies what that changes.
    return pointwise(c, in_float32(scalar.floor_modulo), x, y)


@converter("fmod.Tensor", "fmod.Scalar")
def fmod(c: Call) -> relax.Expr:
    """The sign of the dividend, as in C."""
    x, y = _operands(c, c.dtype)
    return pointwise(c, in_float32(tirx.Mod), x, y) if "float" in c.dtype else c.emit(relax.op.mod(x, y))


@converter("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(c: Call) -> relax.Expr:
    x, exponent = c.tensor("self", c.dtype), c["exponent"]
    if isinstance(exponent, Number) and not isinstance(exponent, bool) and c.dtype != "bool":
        if exponent in (2, 3):
            square = c.emit(relax.op.multiply(x, x))
            return square if exponent == 2 else c.emit(relax.op.multiply(square, x))
        if exponent == 1:
            return x
        if "float" in c.dtype and exponent in (0.5, -0.5):
            return unary(c, "sqrt" if exponent > 0 else "rsqrt", x)
        if "float" in c.dtype and exponent == -1:
            return c.emit(relax.op.divide(constant(1, c.dtype), x))
    if "float" in c.dtype:
        return _in_float32(c, tirx.pow)
    y = c.as_tensor(exponent, c.dtype)
    if c.dtype == "bool":
        return c.emit(relax.op.logical_or(x, c.emit(relax.op.logical_not(y))))
    return power_of_integers(c, x, y)


@converter("bitwise_not.default")
def bitwise_not(c: Call) -> relax.Expr:
    return c.emit((relax.op.logical_not if c.dtype == "bool" else relax.op.bitwise_not)(c.tensor("self")))


@converter("square.default")
def square(c: Call) -> relax.Expr:
    x = c.tensor("self", c.dtype)
    return x if c.dtype == "bool" else c.emit(relax.op.multiply(x, x))


def _whole(c: Call, name: str) -> relax.Expr:
    x = c.tensor("self", c.dtype)
    return unary(c, name, x) if "float" in c.dtype else x


def _pointwise(c: Call, function: Callable[[Scalar], Scalar]) -> relax.Expr:
    return pointwise(c, in_float32(function), c.tensor("self", c.dtype))


for _names, _convert in {
    "neg.default": lambda c: negative(c, c.tensor("self", c.dtype)),
    "div.Tensor div.Scalar": lambda c: c.emit(relax.op.divide(*_operands(c, c.dtype))),
    "atan2.default": lambda c: _in_float32(c, tirx.atan2),
    "logical_not.default": lambda c: c.emit(relax.op.logical_not(c.tensor("self", "bool"))),
    "reciprocal.default": lambda c: c.emit(relax.op.divide(constant(1, c.dtype), c.tensor("self", c.dtype))),
    # Exact of powers of two and of ten, which the logarithm times a number is not.
    "log2.default": lambda c: _pointwise(c, tirx.log2),
    "log10.default": lambda c: _pointwise(c, tirx.log10),
    "exp2.default": lambda c: _pointwise(c, tirx.exp2),
    "leaky_relu.default": lambda c: c.emit(relax.op.nn.leakyrelu(c.tensor("self"), float(c["negative_slope"]))),
    "hardsigmoid.default": lambda c: _pointwise(c, lambda x: scalar.hard_sigmoid(x, 1 / 6, 0.5)),
    "hardswish.default": lambda c: _pointwise(c, lambda x: x * scalar.hard_sigmoid(x, 1 / 6, 0.5)),
}.items():
    converter(*_names.split())(_convert)


@converter("abs.default")
def absolute(c: Call) -> relax.Expr:
    x = c.tensor("self", c.dtype)
    return x if c.dtype in ("bool", "uint8") else c.emit(relax.op.abs(x))


@converter("sign.default")
def sign(c: Call) -> relax.Expr:
    """0 for NaN, as torch has it."""
    if c.dtype == "bool":
        return c.tensor("self")

    def function(x: Scalar) -> Scalar:
        return tirx.Select(tirx.isnan(x), const_like(0, x), scalar.sign(x)) if "float" in c.dtype else scalar.sign(x)

    return _pointwise(c, function)


@converter("isnan.default", "isinf.default")
def is_special(c: Call) -> relax.Expr:
    function = relax.op.isnan if "isnan" in str(c.node.target) else relax.op.isinf
    x = c.tensor("self")
    if "float" not in expr_dtype(x):
        return c.emit(relax.op.full(relax.ShapeExpr(c.shape), constant(False, "bool"), "bool"))
    return c.emit(function(widened(c, x)))


@converter("gelu.default")
def gelu(c: Call) -> relax.Expr:
    function = relax.op.nn.gelu_tanh if c["approximate"] == "tanh" else relax.op.nn.gelu
    return c.cast(c.emit(function(widened(c, c.tensor("self")))), c.dtype)


@converter(
    *(f"clamp{which}.{kind}" for which in ("", "_min", "_max") for kind in ("default", "Tensor")), "hardtanh.default"
)
def clamp(c: Call) -> relax.Expr:
    """In float32 where the type is shorter."""
    x = widened(c, c.tensor("self", c.dtype))
    low = next((c[n] for n in ("min", "min_val") if c.has(n)), None)
    high = next((c[n] for n in ("max", "max_val") if c.has(n)), None)
    if low is not None:
        x = c.emit(relax.op.maximum(x, c.as_tensor(low, expr_dtype(x))))
    if high is not None:
        x = c.emit(relax.op.minimum(x, c.as_tensor(high, expr_dtype(x))))
    return c.cast(x, c.dtype)


@converter(*(f"{name}.{kind}" for name in ("bitwise_left_shift", "bitwise_right_shift") for kind in _SHIFTS))
@converter("__lshift__.Scalar", "__rshift__.Scalar", "__lshift__.Tensor", "__rshift__.Tensor")
def shift(c: Call) -> relax.Expr:
    """Amounts outside of the type shift everything out."""
    left = "lshift" in str(c.node.target) or "left" in str(c.node.target)
    return pointwise(c, lambda a, b: scalar.shift(a, b, left), *_operands(c, c.dtype))


@converter("elu.default")
def elu(c: Call) -> relax.Expr:
    alpha, scale, slope = (float(c[n]) for n in ("alpha", "scale", "input_scale"))
    return _pointwise(c, lambda x: scalar.elu(x, alpha, scale, slope))


@converter("softplus.default")
def softplus(c: Call) -> relax.Expr:
    beta, threshold = float(c["beta"]), float(c["threshold"])

    def function(x: Scalar) -> Scalar:
        scaled = x * const_like(beta, x)
        return tirx.Select(scaled > const_like(threshold, x), x, scalar.softplus(scaled) / const_like(beta, x))

    return _pointwise(c, function)


@converter("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(c: Call) -> relax.Expr:
    return c.emit(relax.op.where(c.tensor("condition", "bool"), c.tensor("self", c.dtype), c.tensor("other", c.dtype)))


@converter("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(c: Call) -> relax.Expr:
    return c.emit(relax.op.where(c.tensor("mask", "bool"), c.tensor("value", c.dtype), c.tensor("self", c.dtype)))


@converter("prims.convert_element_type.default")
def convert_element_type(c: Call) -> relax.Expr:
    """What some of torch's decompositions make of a cast."""
    return c.cast(c.tensor("a"), c.dtype)


@converter("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other")
def to_copy(c: Call) -> relax.Expr:
    x = c.tensor("self")
    source = str(x.ty.dtype)
    if "float" in source and c.dtype in ("uint8", "int8", "int16"):
        # through int32: what a narrow conversion makes of a large number is nobody's promise
        return c.cast(c.cast(x, "int32"), c.dtype)
    return c.cast(x, c.dtype)


@converter(
    "clone.default",
    "alias.default",
    "contiguous.default",
    "detach.default",
    "detach_.default",
    "lift_fresh_copy.default",
    "_conj.default",
    "resolve_conj.default",
    "positive.default",
)
def same(c: Call) -> relax.Expr:
    return c.tensor(next(iter(c.nodes)))


@converter("round.decimals")
def round_to(c: Call) -> relax.Expr:
    """To `decimals` places behind the point, or in front of it."""
    factor = 10.0 ** abs(int(c["decimals"]))
    down = int(c["decimals"]) < 0

    def function(x: Scalar) -> Scalar:
        by = const_like(factor, x)
        return tirx.nearbyint(x / by) * by if down else tirx.nearbyint(x * by) / by

    return _pointwise(c, function)


@converter("glu.default")
def glu(c: Call) -> relax.Expr:
    first, second = c.emit(relax.op.split(c.tensor("self"), 2, int(c["dim"]))), None
    first, second = (c.emit(relax.TupleGetItem(first, i)) for i in range(2))
    return c.emit(relax.op.multiply(first, c.emit(relax.op.sigmoid(second))))
