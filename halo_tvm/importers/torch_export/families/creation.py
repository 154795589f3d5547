"""Tensors made from numbers and sizes."""

from __future__ import annotations

import math

from tvm import relax, te, tirx

from ...meaning.counting import counted
from ...meaning.sizes import prim
from .._call import Call, Number, constant, is_fraction
from .._registry import converter


@converter("arange.start_step", "arange.default", "arange.start")
def arange(c: Call) -> relax.Expr:
    start = c["start"] if c.has("start") else 0
    step = c["step"] if c.has("step") else 1
    whole = [int(v) if isinstance(v, float) and v.is_integer() else v for v in (start, c["end"], step)]
    if not any(isinstance(v, float) or is_fraction(v) for v in whole):
        return c.cast(counted(c.emit, *whole), c.dtype)
    # start + i * step, each rounded once
    index = c.cast(c.emit(relax.op.arange(0, c.shape[0], 1, "int64")), c.dtype)
    scaled = c.emit(relax.op.multiply(index, c.as_tensor(step, c.dtype)))
    return c.emit(relax.op.add(scaled, c.as_tensor(start, c.dtype)))


@converter("linspace.default")
def linspace(c: Call) -> relax.Expr:
    """Counted from both ends, as torch does: the last element is `end` itself."""
    steps, dtype = c["steps"], c.dtype
    wide = "float64" if dtype == "float64" or "int" in dtype else "float32"

    def compute(steps: tirx.PrimExpr) -> te.Tensor:
        last = tirx.max(steps - 1, tirx.IntImm("int64", 1)).astype(wide)
        start, end = tirx.const(float(c["start"]), wide), tirx.const(float(c["end"]), wide)
        step = (end - start) / last

        def at(i: tirx.Var) -> tirx.PrimExpr:
            rest = (steps - 1 - i).astype(wide)
            return tirx.Select(i * 2 < steps, start + i.astype(wide) * step, end - rest * step).astype(dtype)

        return te.compute((steps,), at, name="linspace")

    return c.te(compute, prim(steps), name="linspace")


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


FILLED = (
    *(f"{name}.default" for name in _FILLS),
    "empty.memory_format",
    "full.default",
    "full_like.default",
    "new_full.default",
    "fill.Scalar",
    "fill.Tensor",
    "scalar_tensor.default",
)


@converter(*FILLED)
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
    row = c.reshape(c.emit(relax.op.arange(0, rows, 1, "int64")), [rows, 1])
    return c.cast(c.emit(relax.op.equal(row, c.emit(relax.op.arange(0, columns, 1, "int64")))), c.dtype)
