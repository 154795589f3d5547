"""What is read off the bits of a number, where TVM has no vectors of the call that says it."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from .vector_math import dtype_of


def is_nan(x: Expr) -> Expr:
    """Whether `x`, of any floating-point type but bfloat16, is none: TVM takes `x != x` for false."""
    bits, _, lanes = str(dtype_of(x)).removeprefix("float").partition("x")
    kind = f"uint{bits}x{lanes}" if lanes else f"uint{bits}"
    infinity = {"16": 0x7C00, "32": 0x7F80_0000, "64": 0x7FF0_0000_0000_0000}[bits]
    magnitude = tirx.reinterpret(kind, x) & tirx.const((1 << int(bits) - 1) - 1, kind)
    return magnitude > tirx.const(infinity, kind)
