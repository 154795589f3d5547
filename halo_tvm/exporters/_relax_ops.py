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


def _divide(g: Graph, call: relax.Call, args: list[Value]) -> str:
    if "int" in dtype_of(call):
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


SAME = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "matmul": "MatMul",
    "where": "Where",
    "tanh": "Tanh",
    "erf": "Erf",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sigmoid": "Sigmoid",
    "negative": "Neg",
    "abs": "Abs",
    "sin": "Sin",
    "cos": "Cos",
    "floor": "Floor",
    "ceil": "Ceil",
    "nn.relu": "Relu",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_not": "Not",
}

CONVERTERS: dict[str, Converter] = {
    **{f"relax.{relax_name}": _same_op(op) for relax_name, op in SAME.items()},
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
    "relax.mean": _reduce("ReduceMean"),
    "relax.sum": _reduce("ReduceSum"),
    "relax.max": _reduce("ReduceMax"),
    "relax.min": _reduce("ReduceMin"),
    "relax.clip": _clip,
    "relax.rsqrt": _rsqrt,
    "relax.nn.softmax": _softmax,
    "relax.nn.gelu": _gelu(approximate=False),
    "relax.nn.gelu_tanh": _gelu(approximate=True),
    "relax.nn.silu": _silu,
    "relax.nn.layer_norm": _layer_norm,
}
