"""Arithmetic, comparison, logic and element-wise functions, with torch's type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from tvm import relax, te, tirx

from ...meaning.builder import Refused
from .._call import Call, Number, constant, dtype_name
from .._registry import converter

Binary = Callable[[relax.Expr, relax.Expr], relax.Expr]

_ARITHMETIC: dict[str, Binary] = {
    "mul.Tensor": relax.op.multiply,
    "mul.Scalar": relax.op.multiply,
    "maximum.default": relax.op.maximum,
    "minimum.default": relax.op.minimum,
    "pow.Tensor_Tensor": relax.op.power,
    "pow.Scalar": relax.op.power,
    "atan2.default": relax.op.atan2,
    "bitwise_left_shift.Tensor": relax.op.left_shift,
    "bitwise_right_shift.Tensor": relax.op.right_shift,
    "__lshift__.Scalar": relax.op.left_shift,
    "__rshift__.Scalar": relax.op.right_shift,
}
_COMPARISON: dict[str, Binary] = {
    f"{name}.{overload}": function
    for name, function in {
        "eq": relax.op.equal,
        "ne": relax.op.not_equal,
        "lt": relax.op.less,
        "le": relax.op.less_equal,
        "gt": relax.op.greater,
        "ge": relax.op.greater_equal,
    }.items()
    for overload in ("Tensor", "Scalar")
}
_LOGIC = {
    "and": (relax.op.logical_and, relax.op.bitwise_and),
    "or": (relax.op.logical_or, relax.op.bitwise_or),
    "xor": (relax.op.logical_xor, relax.op.bitwise_xor),
}
_FLOAT: dict[str, Callable[[relax.Expr], relax.Expr]] = {  # results are floating point, whatever goes in
    name: getattr(relax.op, name)
    for name in (
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "asin",
        "acos",
        "atan",
        "asinh",
        "acosh",
        "atanh",
        "sigmoid",
        "erf",
    )
}
_SAME: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "neg": relax.op.negative,
    "abs": relax.op.abs,
    "ceil": relax.op.ceil,
    "floor": relax.op.floor,
    "trunc": relax.op.trunc,
    "sign": relax.op.sign,
    "relu": relax.op.nn.relu,
    "silu": relax.op.nn.silu,
}


def _operands(c: Call, dtype: str) -> tuple[relax.Expr, relax.Expr]:
    first = "self" if "self" in c.nodes else next(iter(c.nodes))
    second = next(name for name in ("other", "exponent") if name in c.nodes)
    return c.tensor(first, dtype), c.tensor(second, dtype)


def _scaled(c: Call, x: relax.Expr) -> relax.Expr:
    """The second operand of add and sub, times alpha."""
    alpha = c["alpha"] if "alpha" in c.nodes else 1
    return x if alpha in (1, None) else c.emit(relax.op.multiply(x, c.as_tensor(alpha, c.dtype)))


def _register() -> None:
    for name, function in _ARITHMETIC.items():
        converter(name)(lambda c, f=function: c.emit(f(*_operands(c, c.dtype))))
    for name, function in _COMPARISON.items():
        converter(name)(lambda c, f=function: c.emit(f(*_operands(c, _common(c)))))
    for name, (on_bool, on_bits) in _LOGIC.items():
        converter(f"logical_{name}.default")(lambda c, f=on_bool: c.emit(f(*_operands(c, "bool"))))

        def bits(c: Call, on_bool: Binary = on_bool, on_bits: Binary = on_bits) -> relax.Expr:
            return c.emit((on_bool if c.dtype == "bool" else on_bits)(*_operands(c, c.dtype)))

        converter(
            *(f"bitwise_{name}.{o}" for o in ("Tensor", "Scalar")), *(f"__{name}__.{o}" for o in ("Tensor", "Scalar"))
        )(bits)
    for name, function in _FLOAT.items():
        converter(f"{name}.default")(lambda c, f=function: c.emit(f(c.tensor("self", c.dtype))))
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
    x = x if c["alpha"] in (1, None) else c.emit(relax.op.multiply(x, c.as_tensor(c["alpha"], c.dtype)))
    return c.emit(relax.op.subtract(y, x))


@converter("div.Tensor", "div.Scalar")
def divide(c: Call) -> relax.Expr:
    return c.emit(relax.op.divide(*_operands(c, c.dtype)))


@converter("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def divide_rounded(c: Call) -> relax.Expr:
    mode = c["rounding_mode"] if "rounding_mode" in c.nodes else "floor"
    x, y = _operands(c, c.dtype)
    if mode is None:
        return c.emit(relax.op.divide(x, y))
    if "float" not in c.dtype:
        if mode == "floor":
            return c.emit(relax.op.floor_divide(x, y))
        return c.te(
            lambda a, b: te.compute(*_broadcast(a, b, tirx.truncdiv), name="trunc_divide"), x, y, name="trunc_divide"
        )
    quotient = c.emit(relax.op.divide(x, y))
    return c.emit((relax.op.floor if mode == "floor" else relax.op.trunc)(quotient))


def _broadcast(a: te.Tensor, b: te.Tensor, function: Callable[..., tirx.PrimExpr]) -> tuple[list, Callable]:
    rank = max(len(a.shape), len(b.shape))

    def padded(x: te.Tensor) -> list:
        return [tirx.IntImm("int64", 1)] * (rank - len(x.shape)) + list(x.shape)

    def one(dim: object) -> bool:
        return isinstance(dim, tirx.IntImm) and dim.value == 1

    shape = [q if one(p) else p for p, q in zip(padded(a), padded(b))]

    def at(x: te.Tensor, index: tuple) -> tirx.PrimExpr:
        return x[tuple(0 if one(d) else i for d, i in zip(x.shape, index[rank - len(x.shape) :]))]

    return shape, lambda *i: function(at(a, i), at(b, i))


@converter("remainder.Tensor", "remainder.Scalar")
def remainder(c: Call) -> relax.Expr:
    """The sign of the divisor, as in Python."""
    x, y = _operands(c, c.dtype)
    if "float" not in c.dtype:
        return c.emit(relax.op.floor_mod(x, y))
    whole = c.emit(relax.op.floor(c.emit(relax.op.divide(x, y))))
    return c.emit(relax.op.subtract(x, c.emit(relax.op.multiply(whole, y))))


@converter("fmod.Tensor", "fmod.Scalar")
def fmod(c: Call) -> relax.Expr:
    """The sign of the dividend, as in C."""
    return c.emit(relax.op.mod(*_operands(c, c.dtype)))


@converter("pow.Tensor_Scalar")
def power(c: Call) -> relax.Expr:
    x, exponent = c.tensor("self", c.dtype), c["exponent"]
    if exponent in (2, 3) and not isinstance(exponent, bool):
        square = c.emit(relax.op.multiply(x, x))
        return square if exponent == 2 else c.emit(relax.op.multiply(square, x))
    if exponent == 1:
        return x
    if "float" in c.dtype and exponent in (0.5, -0.5):
        return c.emit((relax.op.sqrt if exponent > 0 else relax.op.rsqrt)(x))
    if "float" in c.dtype and exponent == -1:
        return c.emit(relax.op.divide(constant(1, c.dtype), x))
    if "float" not in c.dtype:
        wide = c.cast(x, "float64")
        return c.cast(c.emit(relax.op.power(wide, constant(exponent, "float64"))), c.dtype)
    return c.emit(relax.op.power(x, c.as_tensor(exponent, c.dtype)))


@converter("logical_not.default")
def logical_not(c: Call) -> relax.Expr:
    return c.emit(relax.op.logical_not(c.tensor("self", "bool")))


@converter("bitwise_not.default")
def bitwise_not(c: Call) -> relax.Expr:
    return c.emit((relax.op.logical_not if c.dtype == "bool" else relax.op.bitwise_not)(c.tensor("self")))


@converter("reciprocal.default")
def reciprocal(c: Call) -> relax.Expr:
    return c.emit(relax.op.divide(constant(1, c.dtype), c.tensor("self", c.dtype)))


@converter("square.default")
def square(c: Call) -> relax.Expr:
    x = c.tensor("self", c.dtype)
    return c.emit(relax.op.multiply(x, x))


def _by_log(scale: float) -> Callable[[Call], relax.Expr]:
    def convert(c: Call) -> relax.Expr:
        y = c.emit(relax.op.log(c.tensor("self", c.dtype)))
        return c.emit(relax.op.multiply(y, constant(scale, c.dtype)))

    return convert


converter("log2.default")(_by_log(1 / math.log(2)))
converter("log10.default")(_by_log(1 / math.log(10)))


@converter("exp2.default")
def exp2(c: Call) -> relax.Expr:
    x = c.emit(relax.op.multiply(c.tensor("self", c.dtype), constant(math.log(2), c.dtype)))
    return c.emit(relax.op.exp(x))


def _pointwise(c: Call, name: str, function: Callable[[tirx.PrimExpr], tirx.PrimExpr]) -> relax.Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: function(x[i]), name=name)

    return c.te(compute, c.tensor("self", c.dtype), name=name)


@converter("log1p.default")
def log1p(c: Call) -> relax.Expr:
    """log(1 + x) without losing small x: x * log(u) / (u - 1) with u = 1 + x."""

    def function(x: tirx.PrimExpr) -> tirx.PrimExpr:
        one = tirx.const(1, x.dtype)
        u = one + x
        exact = u == one
        return tirx.Select(exact, x, te.log(u) * (x / tirx.Select(exact, one, u - one)))

    return _pointwise(c, "log1p", function)


@converter("expm1.default")
def expm1(c: Call) -> relax.Expr:
    """exp(x) - 1 without losing small x: 2 tanh(x / 2) / (1 - tanh(x / 2)) there."""

    def function(x: tirx.PrimExpr) -> tirx.PrimExpr:
        one = tirx.const(1, x.dtype)
        half = te.tanh(x / tirx.const(2, x.dtype))
        return tirx.Select(tirx.abs(x) < tirx.const(0.5, x.dtype), half * 2 / (one - half), te.exp(x) - one)

    return _pointwise(c, "expm1", function)


@converter("round.default")
def round_half_even(c: Call) -> relax.Expr:
    return _pointwise(c, "round", lambda x: tirx.nearbyint(x))


@converter("isnan.default", "isinf.default")
def is_special(c: Call) -> relax.Expr:
    function = relax.op.isnan if "isnan" in str(c.node.target) else relax.op.isinf
    return c.emit(function(c.tensor("self")))


@converter("gelu.default")
def gelu(c: Call) -> relax.Expr:
    function = relax.op.nn.gelu_tanh if c["approximate"] == "tanh" else relax.op.nn.gelu
    return c.emit(function(c.tensor("self")))


@converter("clamp.default", "clamp_min.default", "clamp_max.default", "hardtanh.default", "clamp.Tensor")
def clamp(c: Call) -> relax.Expr:
    x = c.tensor("self", c.dtype)
    low = next((c[n] for n in ("min", "min_val") if c.has(n)), None)
    high = next((c[n] for n in ("max", "max_val") if c.has(n)), None)
    if low is not None:
        x = c.emit(relax.op.maximum(x, c.as_tensor(low, c.dtype)))
    return x if high is None else c.emit(relax.op.minimum(x, c.as_tensor(high, c.dtype)))


@converter("leaky_relu.default")
def leaky_relu(c: Call) -> relax.Expr:
    return c.emit(relax.op.nn.leakyrelu(c.tensor("self"), float(c["negative_slope"])))


@converter("elu.default")
def elu(c: Call) -> relax.Expr:
    alpha, scale, slope = (float(c[n]) for n in ("alpha", "scale", "input_scale"))

    def function(x: tirx.PrimExpr) -> tirx.PrimExpr:
        def number(value: float) -> tirx.PrimExpr:
            return tirx.const(value, x.dtype)

        negative = number(alpha * scale) * (te.exp(tirx.min(x * number(slope), number(0))) - number(1))
        return tirx.Select(x > number(0), x * number(scale), negative)

    return _pointwise(c, "elu", function)


@converter("softplus.default")
def softplus(c: Call) -> relax.Expr:
    beta, threshold = float(c["beta"]), float(c["threshold"])
    return c.emit(relax.op.nn.softplus(c.tensor("self"), beta, threshold))


@converter("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(c: Call) -> relax.Expr:
    return c.emit(relax.op.where(c.tensor("condition", "bool"), c.tensor("self", c.dtype), c.tensor("other", c.dtype)))


@converter("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(c: Call) -> relax.Expr:
    return c.emit(relax.op.where(c.tensor("mask", "bool"), c.tensor("value", c.dtype), c.tensor("self", c.dtype)))


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
    "dropout.default",
    "_conj.default",
    "resolve_conj.default",
    "positive.default",
)
def same(c: Call) -> relax.Expr:
    if c.nodes.get("train"):
        raise Refused("train=True")
    return c.tensor(next(iter(c.nodes)))


@converter("glu.default")
def glu(c: Call) -> relax.Expr:
    first, second = c.emit(relax.op.split(c.tensor("self"), 2, int(c["dim"]))), None
    first, second = (c.emit(relax.TupleGetItem(first, i)) for i in range(2))
    return c.emit(relax.op.multiply(first, c.emit(relax.op.sigmoid(second))))


@converter("hardsigmoid.default", "hardswish.default")
def hard_sigmoid(c: Call) -> relax.Expr:
    x = c.tensor("self")
    shifted = c.emit(relax.op.add(x, constant(3, c.dtype)))
    cut = c.emit(relax.op.minimum(c.emit(relax.op.maximum(shifted, constant(0, c.dtype))), constant(6, c.dtype)))
    gate = c.emit(relax.op.divide(cut, constant(6, c.dtype)))
    return gate if "hardsigmoid" in str(c.node.target) else c.emit(relax.op.multiply(x, gate))
