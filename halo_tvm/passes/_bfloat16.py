"""bfloat16 arithmetic spelled out in float32.

TVM lowers bfloat16 by integers, and repeats an operand where it rounds one. That breaks a `Let` in it, in silence in
the worst case: whoever puts one there widens the expression around it first, and rounds once, at the end.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.ir import Expr

from ..tir_schedules.blocks import choices_along, is_choice
from ..tir_schedules.code.bits import dtype_of
from ..tir_schedules.code.lets import let

COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_FUNCTIONS = ("fabs", "floor", "ceil", "trunc", "nearbyint", "sqrt")


def is_bfloat16(value: Expr) -> bool:
    return str(dtype_of(value)) == "bfloat16"


def can_widen(value: Expr) -> bool:
    """Whether `value` is bfloat16 arithmetic without branches, which are control flow."""
    if isinstance(value, _ARITHMETIC):
        return can_widen(value.a) and can_widen(value.b)
    if _is_function(value):
        return all(map(can_widen, value.args))
    if isinstance(value, tirx.Select):
        return can_widen(value.true_value) and can_widen(value.false_value)
    if isinstance(value, tirx.Let):
        return can_widen(value.body)
    return is_bfloat16(value) and not is_choice(value)


def widened(value: Expr) -> Expr:
    """A bfloat16 expression that `can_widen` in float32; intermediate results are not rounded."""
    if isinstance(value, _ARITHMETIC):
        return type(value)(widened(value.a), widened(value.b))
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, widened(value.true_value), widened(value.false_value))
    if isinstance(value, tirx.Let):
        return tirx.Let(value.var, value.value, widened(value.body))
    if isinstance(value, tirx.FloatImm):
        return tirx.const(value.value, "float32")
    if _is_function(value):
        return tirx.call_intrin("float32", value.op.name, *map(widened, value.args))
    if isinstance(value, tirx.Cast):
        return value.value if str(dtype_of(value.value)) == "float32" else tirx.Cast("float32", value.value)
    return by_bits(value)


def as_float32(value: Expr) -> Expr:
    """A bfloat16 number in float32: arithmetic by its operands, which have bits of their own, others by their bits.

    A choice is one of float32 numbers: TVM computes it so, and has no bits of it.
    """
    if is_choice(value):
        choices, rest = choices_along(value)
        number = as_float32(rest)
        for choice in reversed(choices):
            number = tirx.if_then_else(choice.args[0], as_float32(choice.args[1]), number)
        return number
    return widened(value) if can_widen(value) else by_bits(value)


def compared(node: Expr) -> Expr:
    """A comparison of bfloat16 in float32: TVM turns one around while one side of it has its bits as an integer."""
    if not (is_bfloat16(node.a) and is_bfloat16(node.b)):
        return node
    return type(node)(as_float32(node.a), as_float32(node.b))


def _is_function(value: Expr) -> bool:
    """Whether it is a function of one number that has no bits of its own before it is computed in float32."""
    return isinstance(value, ir.Call) and isinstance(value.op, ir.Op) and value.op.name.rpartition(".")[2] in _FUNCTIONS


def by_bits(value: Expr) -> Expr:
    """A bfloat16 number as float32: inside a `Let` the lowering of a conversion forgets what the bits mean."""
    bits = tirx.reinterpret("uint16", value).astype("uint32") << tirx.const(16, "uint32")
    return tirx.reinterpret("float32", bits)


def rounded(value: Expr) -> Expr:
    """A float32 expression as bfloat16, to nearest, ties to even; it is evaluated once."""

    def bits_of(x: Expr) -> Expr:
        bits = tirx.reinterpret("uint32", x)
        even = (bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32")
        half = (bits + even + tirx.const(0x7FFF, "uint32")) >> tirx.const(16, "uint32")
        upper = tirx.Select(tirx.isnan(x), tirx.const(0x7FC0, "uint32"), half)
        return tirx.reinterpret("bfloat16", upper.astype("uint16"))

    return let(value, bits_of)
