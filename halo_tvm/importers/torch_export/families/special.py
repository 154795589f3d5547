"""Special functions of elements, and what their bits say."""

from __future__ import annotations

import math

from tvm import relax, tirx

from ...meaning import special
from ...meaning.builder import expr_dtype
from ...meaning.pointwise import HALVES, Scalar, const_like, in_float32, pointwise
from .._call import Call, constant
from .._registry import converter


def _digamma(x: Scalar) -> Scalar:
    """As torch has it at infinity and at zeros."""
    zero, infinite = const_like(0, x), const_like(math.inf, x)
    at_zero = tirx.Select(const_like(1, x) / x > zero, const_like(-math.inf, x), infinite)
    return tirx.Select(x.equal(infinite), x, tirx.Select(x.equal(zero), at_zero, special.digamma(x)))


def _angle(x: Scalar) -> Scalar:
    """Of a real number."""
    turned = tirx.Select(x < const_like(0, x), const_like(math.pi, x), const_like(0, x))
    return tirx.Select(tirx.isnan(x), x, turned)


_SPECIAL = {
    "erfc": special.erfc,
    "erfinv": special.erf_inv,
    "lgamma": special.lgamma,
    "digamma": _digamma,
    "angle": _angle,
}


@converter(*(f"{name}.default" for name in _SPECIAL))
def special_function(c: Call) -> relax.Expr:
    return pointwise(c, in_float32(_SPECIAL[c.op]), c.tensor("self", c.dtype))


@converter("signbit.default")
def sign_bit(c: Call) -> relax.Expr:
    """Also of zeros and of NaN."""
    x = c.tensor("self")
    dtype = expr_dtype(x)
    if "float" not in dtype:
        return (
            c.emit(relax.op.less(x, constant(0, dtype)))
            if dtype != "bool"
            else c.cast(c.emit(relax.op.zeros_like(x)), "bool")
        )
    bits = "int64" if dtype == "float64" else "int16" if dtype in HALVES else "int32"
    return pointwise(c, lambda v: tirx.reinterpret(bits, v) < tirx.const(0, bits), x, name="signbit")


@converter("hypot.default")
def hypot(c: Call) -> relax.Expr:
    return pointwise(c, in_float32(special.hypot), c.tensor("self", c.dtype), c.tensor("other", c.dtype))


@converter("nextafter.default")
def next_after(c: Call) -> relax.Expr:
    c.refuse_unless(c.dtype == "float32", f"elements of {c.dtype}")
    return pointwise(c, special.next_after, c.tensor("self", c.dtype), c.tensor("other", c.dtype))
