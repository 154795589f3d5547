"""Operators on single elements: on channels-first operands where one was made so and the others fit."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from ._node import Channels, Node, Refused, Result
from ._registry import pairs, writes
from .spectra import part_of

_UNARY = {
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "ELU": "Elu",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "HARD_SWISH": "HardSwish",
    "LOG": "Log",
    "LOGICAL_NOT": "Not",
    "LOGISTIC": "Sigmoid",
    "NEG": "Neg",
    "RELU": "Relu",
    "ROUND": "Round",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SQRT": "Sqrt",
    "TANH": "Tanh",
}
_BINARY = {
    "ADD": "Add",
    "DIV": "Div",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "MUL": "Mul",
    "POW": "Pow",
    "SUB": "Sub",
    "BITWISE_XOR": "BitwiseXor",
}
_COMPARISONS = {
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
}
_TYPES = "float32 float16 float64 bfloat16 int4 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()


def operands(node: Node) -> tuple[list[str], type[Result]]:
    """All inputs as floats in one order of their dimensions, and what the result is in that order."""
    rank = len(node.output().shape)
    first = any(node.made_first(i) for i in range(node.count)) and all(
        _can_move(node, i, rank) for i in range(node.count)
    )
    if not first:
        return [node.x(i) for i in range(node.count)], Result
    return [_moved(node, i, rank) for i in range(node.count)], Channels


def _can_move(node: Node, i: int, rank: int) -> bool:
    found = node.rank(i)
    return found == rank or found == 0 or (found == 1 and node.known(i) is not None)


def _moved(node: Node, i: int, rank: int) -> str:
    """Input `i` with its channels first; a vector of channels becomes [c, 1, 1]."""
    if node.rank(i) == rank:
        return node.x(i, first=True)
    return node.emit("Reshape", node.x(i), node.sizes([-1] + [1] * (rank - 2))) if node.rank(i) else node.x(i)


@writes(*_UNARY)
def unary(node: Node) -> Result:
    (x, *_), kind = operands(node)
    return kind(node.emit(_UNARY[node.operator.name], x))


@writes(*_BINARY)
def binary(node: Node) -> Result:
    (x, y, *_), kind = operands(node)
    return kind(node.emit(_BINARY[node.operator.name], x, y))


@writes("ADD_N")
def add_n(node: Node) -> Result:
    values, kind = operands(node)
    return kind(node.emit("Sum", *values))


@writes(*_COMPARISONS, "NOT_EQUAL")
def comparison(node: Node) -> Result:
    (x, y, *_), kind = operands(node)
    if node.operator.name == "NOT_EQUAL":
        return kind(node.emit("Not", node.emit("Equal", x, y)))
    return kind(node.emit(_COMPARISONS[node.operator.name], x, y))


@writes("RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def clipped(node: Node) -> Result:
    (x, *_), kind = operands(node)
    return kind(node.activation(node.operator.name, x))


@writes("LEAKY_RELU")
def leaky_relu(node: Node) -> Result:
    (x, *_), kind = operands(node)
    return kind(node.emit("LeakyRelu", x, alpha=node.real("alpha")))


@writes("PRELU")
def prelu(node: Node) -> Result:
    """Slopes broadcast as numpy has it, over the last dimensions."""
    return Result(node.emit("PRelu", node.x(0), node.x(1)))


@writes("GELU")
def gelu(node: Node) -> Result:
    (x, *_), kind = operands(node)
    return kind(node.emit("Gelu", x, approximate="tanh" if node.flag("approximate") else "none"))


@writes("SQUARE")
def square(node: Node) -> Result:
    (x, *_), kind = operands(node)
    return kind(node.emit("Mul", x, x))


@writes("RSQRT")
def rsqrt(node: Node) -> Result:
    (x, *_), kind = operands(node)
    return kind(node.emit("Reciprocal", node.emit("Sqrt", x)))


@writes("SQUARED_DIFFERENCE")
def squared_difference(node: Node) -> Result:
    (x, y, *_), kind = operands(node)
    difference = node.emit("Sub", x, y)
    return kind(node.emit("Mul", difference, difference))


@writes("FLOOR_DIV")
def floor_div(node: Node) -> Result:
    """Rounded down, floats behind a division in float64; integers from their remainder, of the divisor's sign."""
    x, y = node.x(0), node.x(1)
    if node.output().dtype.startswith("float"):
        wide = [node.emit("Cast", value, to=onnx_type("float64")) for value in (x, y)]
        whole = node.emit("Floor", node.emit("Div", *wide))
        return Result(node.emit("Cast", whole, to=onnx_type(node.output().dtype)))
    return Result(node.emit("Div", node.emit("Sub", x, node.emit("Mod", x, y)), y))


@writes("FLOOR_MOD")
def floor_mod(node: Node) -> Result:
    """The remainder with the sign of the divisor."""
    x, y = node.x(0), node.x(1)
    if not node.output().dtype.startswith("float"):
        return Result(node.emit("Mod", x, y))
    zero, rest = node.const(0.0, np.dtype(node.output().dtype)), node.emit("Mod", x, y, fmod=1)
    differ = node.emit("Xor", node.emit("Less", rest, zero), node.emit("Less", y, zero))
    moved = node.emit("And", differ, node.emit("Not", node.emit("Equal", rest, zero)))
    return Result(node.emit("Where", moved, node.emit("Add", rest, y), rest))


@writes("ATAN2")
def atan2(node: Node) -> Result:
    """The angle of (x, y): arctan(y / x), a half turn away where x < 0, a quarter where x = 0; -0 is below 0."""
    far = node.const(float(np.finfo(np.float32).max), np.float32)  # for infinity, two of which have no quotient
    y, x = (node.emit("Max", node.emit("Min", node.x(i), far), node.emit("Neg", far)) for i in (0, 1))
    zero, pi = node.const(0.0, np.float32), node.const(math.pi, np.float32)
    half = node.const(math.pi / 2, np.float32)
    reciprocal = node.emit("Reciprocal", y)  # which alone shows the sign of 0
    below = node.emit("Or", node.emit("Less", y, zero), node.emit("Less", reciprocal, zero))
    level = node.emit("Equal", x, zero)
    divisor = node.emit("Where", level, node.const(1.0, np.float32), x)
    turn = node.emit("Where", below, node.emit("Neg", pi), pi)
    shift = node.emit("Where", node.emit("Less", x, zero), turn, zero)
    angle = node.emit("Add", node.emit("Atan", node.emit("Div", y, divisor)), shift)
    upright = node.emit(
        "Where", node.emit("Equal", y, zero), zero, node.emit("Where", below, node.emit("Neg", half), half)
    )
    return Result(node.emit("Where", level, upright, angle))


@writes("RIGHT_SHIFT")
def right_shift(node: Node) -> Result:
    if not node.tensor(0).dtype.startswith("uint"):
        raise Refused(f"expected unsigned integers, found {node.tensor(0).dtype}")
    return Result(node.emit("BitShift", node.x(0), node.x(1), direction="RIGHT"))


@writes("SELECT", "SELECT_V2")
def select(node: Node) -> Result:
    """A vector of conditions chooses rows in SELECT, whose operands have one rank otherwise."""
    condition, x, y = node.stored(0), node.x(1), node.x(2)
    if node.operator.name == "SELECT" and node.rank(0) == 1 and node.rank(1) > 1:
        condition = node.emit("Reshape", condition, node.sizes([-1] + [1] * (node.rank(1) - 1)))
    return Result(node.emit("Where", condition, x, y))


@pairs
@writes("CAST")
def cast(node: Node) -> Result:
    """Of complex numbers the real parts are left; floats beyond a small integer type are its nearest."""
    if node.output().is_complex:
        raise Refused("expected real numbers, found complex ones")
    if node.tensor(0).is_complex:
        return Result(node.emit("Cast", part_of(node, 0), to=onnx_type(node.output().dtype)), stored=True)
    x, given, wanted = node.stored(0), np.dtype(node.tensor(0).dtype), np.dtype(node.output().dtype)
    if given.kind == "f" and wanted.kind in "iu" and wanted.itemsize < given.itemsize:
        least, most = (float(bound) for bound in (np.iinfo(wanted).min, np.iinfo(wanted).max))
        x = node.emit("Clip", x, node.const(least, given), node.const(most, given))
    return Result(node.emit("Cast", x, to=onnx_type(wanted.name)), stored=True)


@writes("QUANTIZE", "DEQUANTIZE")
def converted(node: Node) -> Result:
    """From one grid to another, from floats to a grid, or back; the graph puts results on their grid."""
    (x, *_), kind = operands(node)
    source, target = node.tensor(0), node.output()
    if source.dtype != target.dtype and source.grid is None and target.grid is None:  # float16 to float32
        x = node.emit("Cast", x, to=onnx_type(target.dtype))
    return kind(x)


@writes("FAKE_QUANT")
def fake_quant(node: Node) -> Result:
    """Rounded to the grid of `num_bits` between min and max, which is moved so that 0 lies on it.

    Source: TensorFlow's FakeQuantWithMinMaxArgs.
    """
    low, high, bits = node.real("min"), node.real("max"), node.option("num_bits")
    if not (low <= 0 <= high and low < high and 2 <= bits <= 16):
        raise Refused(f"expected a range around 0 and 2 to 16 bits, found {low} to {high} and {bits}")
    least, most = (1 if node.flag("narrow_range") else 0), (1 << bits) - 1
    scale = (high - low) / (most - least)
    zero = min(max(round(least - low / scale), least), most)
    limits = [node.const((v - zero) * scale, np.float32) for v in (least, most)]
    (x, *_), kind = operands(node)
    steps = node.emit("Div", node.emit("Sub", node.emit("Clip", x, *limits), limits[0]), node.const(scale, np.float32))
    whole = node.emit("Floor", node.emit("Add", steps, node.const(0.5, np.float32)))
    return kind(node.emit("Add", node.emit("Mul", whole, node.const(scale, np.float32)), limits[0]))


@writes("ZEROS_LIKE")
def zeros_like(node: Node) -> Result:
    (x, *_), kind = operands(node)
    return kind(node.emit("Expand", node.const(0, np.dtype(node.output().dtype)), node.emit("Shape", x)))


def onnx_type(name: str) -> int:
    """Of TensorProto.DataType."""
    if name not in _TYPES:
        raise Refused(f"expected numbers, found {name}")
    return int(getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE", "int4": "INT8"}.get(name, name.upper())))
