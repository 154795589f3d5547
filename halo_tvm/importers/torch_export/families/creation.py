"""Tensors made from numbers and sizes."""

from __future__ import annotations

import math

from tvm import relax, tirx

from .._call import Call, Number, constant
from .._registry import converter


@converter("arange.start_step", "arange.default", "arange.start")
def arange(c: Call) -> relax.Expr:
    start = c["start"] if c.has("start") else 0
    step = c["step"] if c.has("step") else 1
    end = c["end"]
    if all(isinstance(v, int) for v in (start, step, end)) or not any(isinstance(v, float) for v in (start, step, end)):
        counted = c.emit(relax.op.arange(start, end, step, "int64"))
        return c.cast(counted, c.dtype)
    # a float step: start + i * step, each rounded once
    index = c.cast(c.emit(relax.op.arange(0, c.shape[0], 1, "int64")), c.dtype)
    scaled = c.emit(relax.op.multiply(index, constant(step, c.dtype)))
    return c.emit(relax.op.add(scaled, constant(start, c.dtype)))


@converter("linspace.default")
def linspace(c: Call) -> relax.Expr:
    start, end, steps = float(c["start"]), float(c["end"]), c["steps"]
    index = c.cast(c.emit(relax.op.arange(0, steps, 1, "int64")), c.dtype)
    step = (end - start) / max(int(steps) - 1, 1)
    return c.emit(relax.op.add(c.emit(relax.op.multiply(index, constant(step, c.dtype))), constant(start, c.dtype)))


_FILLS = {
    "zeros": 0,
    "ones": 1,
    "empty": 0,
    "new_zeros": 0,
    "new_ones": 1,
    "new_empty": 0,
    "zeros_like": 0,
    "ones_like": 1,
    "empty_like": 0,
    "empty_permuted": 0,
}


@converter(
    *(f"{name}.default" for name in _FILLS),
    "empty.memory_format",
    "full.default",
    "full_like.default",
    "new_full.default",
    "fill.Scalar",
    "fill.Tensor",
    "scalar_tensor.default",
)
def full(c: Call) -> relax.Expr:
    """`empty` is zeros here: what a program does with it must not depend on its elements."""
    name = c.node.target._schema.name.split("::")[1]
    value = _FILLS.get(name)
    if value is None:
        value = c[next(n for n in ("fill_value", "value", "s") if n in c.nodes)]
    if not isinstance(value, Number) or not math.isfinite(value):  # TVM fills with numbers only
        return c.broadcast(c.as_tensor(value, c.dtype), c.shape)
    if not c.shape:
        return constant(value, c.dtype)
    return c.emit(relax.op.full(relax.ShapeExpr(c.shape), constant(value, c.dtype), c.dtype))


@converter("eye.default", "eye.m")
def eye(c: Call) -> relax.Expr:
    rows, columns = c.shape
    one = tirx.IntImm("int64", 1)
    row = c.reshape(c.emit(relax.op.arange(0, rows, 1, "int64")), [rows, one])
    return c.cast(c.emit(relax.op.equal(row, c.emit(relax.op.arange(0, columns, 1, "int64")))), c.dtype)
