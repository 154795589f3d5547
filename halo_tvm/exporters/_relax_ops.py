"""ONNX for Relax's own operators: a table from operator name to converter.

A converter gets the graph, the call and the names of its arguments, and returns the name of its
result (a tuple of names for a tuple). It raises `UnsupportedModel(reason)` for what it cannot say.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper
from tvm import relax

from ..errors import UnsupportedModel
from ..plain import plain
from ._graph import CONTRIB, Graph, dims_of, dtype_of

Value = str | tuple[str, ...] | None  # None: an argument that is no tensor (a shape, a number)
Converter = Callable[[Graph, relax.Call, list[Value]], Value]


def _same_op(op: str) -> Converter:
    return lambda g, call, args: g.emit(op, *args)


def rounds(call: relax.Call) -> bool:
    """Whether `call` divides integers, where rounding differs between ONNX and Relax."""
    return str(call.op.name) == "relax.divide" and "int" in dtype_of(call)


def _divide(g: Graph, call: relax.Call, args: list[Value]) -> str:
    if rounds(call):
        raise UnsupportedModel("divides integers, where rounding differs between ONNX and Relax")
    return g.emit("Div", *args)


def _reshape(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.reshape(args[0], dims_of(call.args[0]), dims_of(call))


def _permute_dims(g: Graph, call: relax.Call, args: list[Value]) -> str:
    axes = plain(call.attrs.axes)
    return g.emit("Transpose", args[0], perm=list(axes) if axes else None)


def _expand_dims(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("Unsqueeze", args[0], g.vector(plain(call.attrs.axis)))


def _squeeze(g: Graph, call: relax.Call, args: list[Value]) -> str:
    axis = plain(call.attrs.axis)
    return g.emit("Squeeze", args[0], *([g.vector(axis)] if axis is not None else []))


def _broadcast_to(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("Expand", args[0], g.shape(dims_of(call)))


def _concat(g: Graph, call: relax.Call, args: list[Value]) -> str:
    axis = plain(call.attrs.axis)
    return g.emit("Concat", *args[0], axis=0 if axis is None else axis)


def _split(g: Graph, call: relax.Call, args: list[Value]) -> tuple[str, ...]:
    axis = plain(call.attrs.axis)
    sizes = [field.shape.values[axis] for field in call.ty.fields]
    return g.emit_many("Split", args[0], g.shape(sizes), outputs=len(sizes), axis=axis)


def _strided_slice(g: Graph, call: relax.Call, args: list[Value]) -> str:
    axes, begin, end, *strides = [list(arg.fields) for arg in call.args[1:]]
    inputs = [g.shape(begin), g.shape(end), g.shape(axes), *(g.shape(s) for s in strides)]
    return g.emit("Slice", args[0], *inputs)


def _take(g: Graph, call: relax.Call, args: list[Value]) -> str:
    axis = plain(call.attrs.axis)
    if axis is None and len(dims_of(call.args[0])) != 1:
        raise UnsupportedModel("take without an axis from a tensor of rank above 1")
    index = args[1] if args[1] is not None else g.dim_scalar(call.args[1])
    return g.emit("Gather", args[0], index, axis=axis or 0)


def _arange(g: Graph, call: relax.Call, args: list[Value]) -> str:
    numbers = g.once("Range", *(g.dim_scalar(a) for a in call.args))
    return _cast(g, numbers, dtype_of(call)) if dtype_of(call) != "int64" else numbers


def _cast(g: Graph, x: str, dtype: str) -> str:
    return g.emit("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _full(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("Expand", _cast(g, args[1], dtype_of(call)), g.shape(dims_of(call)))


def _filled(number: int) -> Converter:
    def convert(g: Graph, call: relax.Call, args: list[Value]) -> str:
        value = g.constant(np.array(number, np.float32))
        return g.emit("Expand", _cast(g, value, dtype_of(call)), g.shape(dims_of(call)))

    return convert


def _reduce(op: str) -> Converter:
    def convert(g: Graph, call: relax.Call, args: list[Value]) -> str:
        axis = plain(call.attrs.axis)
        inputs = [] if axis is None else [g.vector(axis)]
        return g.emit(op, args[0], *inputs, keepdims=int(plain(call.attrs.keepdims)))

    return convert


def _softmax(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("Softmax", args[0], axis=plain(call.attrs.axis))


def _rsqrt(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("Reciprocal", g.emit("Sqrt", args[0]))


def _silu(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return silu(g, args[0])


def silu(g: Graph, x: str) -> str:
    """x * sigmoid(x)"""
    if g.spelling.silu == "op":
        return g.emit("Swish", x)
    return g.emit("Mul", x, g.emit("Sigmoid", x))


def gelu(g: Graph, x: str, dtype: str, *, approximate: bool) -> str:
    """GELU through erf, or through tanh when `approximate`."""
    if g.spelling.gelu == "contrib":
        return g.emit("FastGelu" if approximate else "Gelu", x, domain=CONTRIB)
    if g.spelling.gelu == "op":
        return g.emit("Gelu", x, approximate="tanh" if approximate else "none")

    def number(value: float) -> str:
        return g.constant(np.array(value, dtype))

    if approximate:
        cube = g.emit("Mul", number(0.044715), g.emit("Pow", x, number(3.0)))
        inner = g.emit("Tanh", g.emit("Mul", number(np.sqrt(2 / np.pi)), g.emit("Add", x, cube)))
        return g.emit("Mul", g.emit("Mul", x, number(0.5)), g.emit("Add", inner, number(1.0)))
    inner = g.emit("Erf", g.emit("Div", x, number(np.sqrt(2))))
    return g.emit("Mul", g.emit("Mul", x, g.emit("Add", inner, number(1.0))), number(0.5))


def _gelu(approximate: bool) -> Converter:
    return lambda g, call, args: gelu(g, args[0], dtype_of(call), approximate=approximate)


def _layer_norm(g: Graph, call: relax.Call, args: list[Value]) -> str:
    axes = sorted(a % len(dims_of(call)) for a in plain(call.attrs.axes))
    if axes != list(range(axes[0], len(dims_of(call)))):
        raise UnsupportedModel(f"layer_norm over axes {axes}, which are not the last ones")
    return g.emit("LayerNormalization", *args, axis=axes[0], epsilon=float(plain(call.attrs.epsilon)))


def _clip(g: Graph, call: relax.Call, args: list[Value]) -> str:
    low, high = (g.constant(np.array(plain(a), dtype_of(call))) for a in call.args[1:])
    return g.emit("Clip", args[0], low, high)


def _not_equal(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("Not", g.emit("Equal", *args))


def _square(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("Mul", args[0], args[0])


def _trunc(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("Mul", g.emit("Sign", args[0]), g.emit("Floor", g.emit("Abs", args[0])))


def _mod(op_sign: int) -> Converter:
    """Remainders: `fmod` 1 takes the dividend's sign, 0 the divisor's, which ONNX has for integers alone."""

    def convert(g: Graph, call: relax.Call, args: list[Value]) -> str:
        if not op_sign and "int" not in dtype_of(call):
            quotient = g.emit("Floor", g.emit("Div", *args))
            return g.emit("Sub", args[0], g.emit("Mul", quotient, args[1]))
        return g.emit("Mod", *args, fmod=op_sign)

    return convert


def _argument(op: str) -> Converter:
    def convert(g: Graph, call: relax.Call, args: list[Value]) -> str:
        axis = plain(call.attrs.axis)
        if axis is None:
            raise UnsupportedModel("the place of an extreme among all elements: give an axis")
        found = g.emit(op, args[0], axis=axis, keepdims=int(plain(call.attrs.keepdims)))
        return found if dtype_of(call) == "int64" else _cast(g, found, dtype_of(call))

    return convert


def _cumsum(g: Graph, call: relax.Call, args: list[Value]) -> str:
    axis = plain(call.attrs.axis)
    if axis is None or dtype_of(call) != dtype_of(call.args[0]):
        raise UnsupportedModel("a running sum over all axes, or of another type than its input")
    exclusive = int(bool(plain(call.attrs.exclusive)))
    return g.emit("CumSum", args[0], g.constant(np.array(axis, np.int64)), exclusive=exclusive)


def _triangle(upper: int) -> Converter:
    return lambda g, call, args: g.emit("Trilu", args[0], g.dim_scalar(call.args[1]), upper=upper)


def _tile(g: Graph, call: relax.Call, args: list[Value]) -> str:
    repeats = plain(call.attrs.repeats)
    if len(repeats) != len(dims_of(call.args[0])):
        raise UnsupportedModel("repeats of another number than the axes")
    return g.emit("Tile", args[0], g.vector(repeats))


def _flip(g: Graph, call: relax.Call, args: list[Value]) -> str:
    axis = plain(call.attrs.axis)
    least = g.constant(np.array([np.iinfo(np.int64).min], np.int64))
    return g.emit("Slice", args[0], g.vector([-1]), least, g.vector([axis]), g.vector([-1]))


def _gather_elements(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("GatherElements", *args, axis=plain(call.attrs.axis))


def _gather_nd(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("GatherND", args[0], _cast(g, args[1], "int64"), batch_dims=plain(call.attrs.batch_dims))


def _scatter(op: str) -> Converter:
    def convert(g: Graph, call: relax.Call, args: list[Value]) -> str:
        reduction = plain(call.attrs.reduction)
        if reduction not in ("update", "add", "mul", "max", "min"):
            raise UnsupportedModel(f"a scatter that reduces by {reduction}")
        axis = {"axis": plain(call.attrs.axis)} if op == "ScatterElements" else {}
        index = _cast(g, args[1], "int64")
        return g.emit(op, args[0], index, args[2], reduction="none" if reduction == "update" else reduction, **axis)

    return convert


def _shift(direction: str) -> Converter:
    return lambda g, call, args: g.emit("BitShift", *args, direction=direction)


def _activation(op: str, **attrs: str) -> Converter:
    """`attrs`: the attribute of ONNX -> that of Relax."""
    return lambda g, call, args: g.emit(
        op, *args, **{name: float(plain(getattr(call.attrs, of))) for name, of in attrs.items()}
    )


def _log_softmax(g: Graph, call: relax.Call, args: list[Value]) -> str:
    return g.emit("LogSoftmax", args[0], axis=plain(call.attrs.axis))


_CAPITALISED = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "log"),
    *("sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
)
FUNCTIONS = {  # what Relax and TensorIR call alike, and its operator in ONNX
    **{name: name.capitalize() for name in _CAPITALISED},
    **{f"bitwise_{name}": f"Bitwise{name.capitalize()}" for name in ("and", "or", "xor", "not")},
    "isnan": "IsNaN",
    "isinf": "IsInf",
}
_SAME = {
    **FUNCTIONS,
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "matmul": "MatMul",
    "where": "Where",
    "negative": "Neg",
    "nn.relu": "Relu",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_not": "Not",
    "logical_xor": "Xor",
    "round": "Round",
    "sign": "Sign",
}

CONVERTERS: dict[str, Converter] = {
    **{f"relax.{relax_name}": _same_op(op) for relax_name, op in _SAME.items()},
    "relax.divide": _divide,
    "relax.reshape": _reshape,
    "relax.permute_dims": _permute_dims,
    "relax.expand_dims": _expand_dims,
    "relax.squeeze": _squeeze,
    "relax.broadcast_to": _broadcast_to,
    "relax.concat": _concat,
    "relax.split": _split,
    "relax.strided_slice": _strided_slice,
    "relax.take": _take,
    "relax.arange": _arange,
    "relax.astype": lambda g, call, args: _cast(g, args[0], dtype_of(call)),
    "relax.full": _full,
    "relax.zeros": _filled(0),
    "relax.ones": _filled(1),
    "relax.mean": _reduce("ReduceMean"),
    "relax.sum": _reduce("ReduceSum"),
    "relax.max": _reduce("ReduceMax"),
    "relax.min": _reduce("ReduceMin"),
    "relax.prod": _reduce("ReduceProd"),
    "relax.argmax": _argument("ArgMax"),
    "relax.argmin": _argument("ArgMin"),
    "relax.nonzero": lambda g, call, args: g.emit("NonZero", args[0]),
    "relax.cumsum": _cumsum,
    "relax.not_equal": _not_equal,
    "relax.square": _square,
    "relax.trunc": _trunc,
    "relax.mod": _mod(1),
    "relax.floor_mod": _mod(0),
    "relax.left_shift": _shift("LEFT"),
    "relax.right_shift": _shift("RIGHT"),
    "relax.tril": _triangle(0),
    "relax.triu": _triangle(1),
    "relax.tile": _tile,
    "relax.flip": _flip,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.scatter_elements": _scatter("ScatterElements"),
    "relax.scatter_nd": _scatter("ScatterND"),
    "relax.nn.leakyrelu": _activation("LeakyRelu", alpha="alpha"),
    "relax.nn.softplus": lambda g, call, args: g.emit("Softplus", args[0]),
    "relax.nn.log_softmax": _log_softmax,
    "relax.clip": _clip,
    "relax.tensor_to_shape": lambda g, call, args: args[0],
    "relax.rsqrt": _rsqrt,
    "relax.nn.softmax": _softmax,
    "relax.nn.gelu": _gelu(approximate=False),
    "relax.nn.gelu_tanh": _gelu(approximate=True),
    "relax.nn.silu": _silu,
    "relax.nn.layer_norm": _layer_norm,
}
