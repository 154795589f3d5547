"""Functions of one element that every source has; types shorter than float32 go through it."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, tirx

from . import scalar
from .builder import Builder, expr_dtype
from .pointwise import Scalar, const_like, in_float32, pointwise, widened

# What Relax and the code generator do exactly.
_RELAX: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    name: getattr(relax.op, name)
    for name in ("ceil", "floor", "trunc", "sqrt", "rsqrt", "exp", "log", "erf", "sigmoid", "sin", "cos", "tan")
}
_RELAX |= {name: getattr(relax.op, name) for name in ("asin", "acos", "atan")}
_SCALAR: dict[str, Callable[[Scalar], Scalar]] = {
    "sinh": scalar.sinh,
    "cosh": scalar.cosh,
    "asinh": scalar.asinh,
    "acosh": scalar.acosh,
    "atanh": scalar.atanh,
    "softplus": scalar.softplus,
    "sign": scalar.sign,
    "mish": lambda x: x * scalar.tanh(scalar.softplus(x)),
    "softsign": lambda x: x / (const_like(1, x) + tirx.abs(x)),
    "round": tirx.nearbyint,  # halves go to the even neighbour
    "expm1": scalar.expm1,
    "log1p": scalar.log1p,
}
FUNCTIONS = frozenset({*_RELAX, *_SCALAR, "tanh"})


def unary(builder: Builder, name: str, x: relax.Expr) -> relax.Expr:
    """The function `name`, one of `FUNCTIONS`, of every element."""
    dtype = expr_dtype(x)
    if name in _SCALAR or name == "tanh" and dtype == "float64":
        return pointwise(builder, in_float32(_SCALAR.get(name, scalar.tanh)), x, name=name)
    function = relax.op.tanh if name == "tanh" else _RELAX[name]
    return builder.cast(builder.emit(function(widened(builder, x))), dtype)


def negative(builder: Builder, x: relax.Expr) -> relax.Expr:
    """-x; numbers without a sign wrap around: TVM multiplies by -1, which they do not have, and takes 0 - x for 0."""
    dtype = expr_dtype(x)
    if not dtype.startswith("uint"):
        return builder.emit(relax.op.negative(x))
    return builder.emit(relax.op.add(builder.emit(relax.op.bitwise_not(x)), relax.const(1, dtype)))
