"""Constants, bits and signs of numbers, with as many lanes as another expression has."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr


def dtype_of(x: Expr) -> tvm_ffi.dtype:
    return tvm_ffi.dtype(str(x.ty.dtype))


def kind_of(x: Expr) -> str:
    """The type of one lane."""
    return str(dtype_of(x)).partition("x")[0]


def with_lanes(base: str, x: Expr) -> str:
    lanes = dtype_of(x).lanes
    return base if lanes == 1 else f"{base}x{lanes}"


def like(x: Expr, value: float, dtype: str = "float32") -> Expr:
    """A constant with as many lanes as `x`."""
    constant, lanes = tirx.const(value, dtype), dtype_of(x).lanes
    return constant if lanes == 1 else tirx.Broadcast(constant, lanes)


def int_like(x: Expr, value: int) -> Expr:
    return like(x, value, "int32")


def equal(x: Expr, value: float) -> Expr:
    return tirx.EQ(x, like(x, value))


def bits_of(x: Expr) -> Expr:
    """Those of a float32, as an int32."""
    return tirx.reinterpret(with_lanes("int32", x), x)


def float_of(bits: Expr) -> Expr:
    """The float32 that has these bits."""
    return tirx.reinterpret(with_lanes("float32", bits), bits)


def with_sign_of(x: Expr, magnitude: Expr) -> Expr:
    """`magnitude`, which has no sign of its own, with that of `x`, both float32; also of -0."""
    return float_of(tirx.bitwise_or(bits_of(magnitude), tirx.bitwise_and(bits_of(x), int_like(x, -(2**31)))))


def is_nan(x: Expr) -> Expr:
    """Whether `x`, of any floating-point type but bfloat16, is none: TVM takes `x != x` for false."""
    bits = dtype_of(x).bits
    kind = f"uint{bits}"
    infinity = {16: 0x7C00, 32: 0x7F80_0000, 64: 0x7FF0_0000_0000_0000}[bits]
    magnitude = tirx.reinterpret(with_lanes(kind, x), x) & like(x, (1 << bits - 1) - 1, kind)
    return magnitude > like(x, infinity, kind)
