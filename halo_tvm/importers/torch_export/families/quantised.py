"""Quantised numbers of torch's export (PT2E), and of modules that only play at being quantised.

A weight that is stored in integers is restored when it is loaded; activations are rounded as torch rounds them.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax, tirx

from ...meaning.constant import Constant
from ...meaning.pointwise import Scalar, pointwise
from .._call import Call, constant, dtype_name
from .._registry import converter

_FAKE = ("fake_quantize_per_tensor_affine_cachemask.default", "fake_quantize_per_channel_affine_cachemask.default")


@converter(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_channel.default",
)
def quantize(c: Call) -> relax.Expr:
    """clamp(round(x / scale) + zero point, quant_min, quant_max) in the integers' type."""
    dtype = c.dtype

    def rounded(x: Scalar, inverse: Scalar, zero: Scalar) -> Scalar:
        return _on_grid(c, x, inverse, zero).astype(dtype)

    return pointwise(c, rounded, c.tensor("input", "float32"), *_grid(c, inverse=True), name="quantize")


@converter(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_channel.default",
)
def dequantize(c: Call) -> relax.Expr:
    """(x - zero point) * scale."""
    x, (scale, zero) = c.tensor("input"), _grid(c, inverse=False)
    dtype, held = c.dtype, [c.translator.constant_of(part) for part in (x, scale, zero)]
    if all(part is not None for part in held) and dtype == "float32":
        return c.translator.weight_of(_restored(*held))  # type: ignore[arg-type]

    def restored(x: Scalar, scale: Scalar, zero: Scalar) -> Scalar:
        return ((x.astype("float32") - zero) * scale).astype(dtype)

    return pointwise(c, restored, x, scale, zero, name="dequantize")


@converter(*_FAKE)
def fake_quantize(c: Call) -> tuple[relax.Expr, relax.Expr]:
    """What is left of x behind a grid of integers, and which elements lie on it."""
    x, (scale, zero), (inverse, _) = c.tensor("self", "float32"), _grid(c, False), _grid(c, True)
    dtype = dtype_name(c.out.dtype)

    def left(x: Scalar, inverse: Scalar, scale: Scalar, zero: Scalar) -> Scalar:
        return ((_on_grid(c, x, inverse, zero) - zero) * scale).astype(dtype)

    def inside(x: Scalar, inverse: Scalar, zero: Scalar) -> Scalar:
        place = tirx.nearbyint(x * inverse) + zero
        return tirx.all(place >= float(c["quant_min"]), place <= float(c["quant_max"]))

    value = pointwise(c, left, x, inverse, scale, zero, name="fake_quantize")
    return value, pointwise(c, inside, x, inverse, zero, name="on_grid")


def _on_grid(c: Call, x: Scalar, inverse: Scalar, zero: Scalar) -> Scalar:
    low, high = (tirx.const(float(c[name]), "float32") for name in ("quant_min", "quant_max"))
    return tirx.max(tirx.min(tirx.nearbyint(x * inverse) + zero, high), low)


def _grid(c: Call, inverse: bool) -> tuple[relax.Expr, relax.Expr]:
    """The scale (or 1 / scale) and the zero point in float32, as they broadcast to the input."""
    name, zeros = ("scales", "zero_points") if "scales" in c.nodes else ("scale", "zero_point")
    scale, zero = c[name], c[zeros] if c.has(zeros) else 0
    if isinstance(scale, int | float):
        return constant(1.0 / scale if inverse else scale, "float32"), c.as_tensor(zero, "float32")
    rank = c.rank("input" if "input" in c.nodes else "self")
    axis = int(c["axis"]) % rank if "axis" in c.nodes else -1
    parts = [c.as_tensor(scale, "float32"), c.as_tensor(zero, "float32")]
    if inverse:
        parts[0] = _inverse(c, parts[0])
    if axis < 0:
        return c.reshape(parts[0], []), c.reshape(parts[1], [])
    return tuple(_along(c, part, axis, rank) for part in parts)


def _inverse(c: Call, scale: relax.Expr) -> relax.Expr:
    if isinstance(scale, ir.GenericConst):
        return constant(np.float32(1.0) / scale.value.numpy(), "float32")
    return c.emit(relax.op.divide(constant(1.0, "float32"), scale))


def _along(c: Call, part: relax.Expr, axis: int, rank: int) -> relax.Expr:
    if part.ty.ndim == 0:
        return part
    shape = [1] * rank
    shape[axis] = -1
    if isinstance(part, ir.GenericConst):
        return constant(part.value.numpy().reshape(shape), "float32")
    shape[axis] = part.ty.shape.values[0]
    return c.reshape(part, shape)


def _restored(x: Constant, scale: Constant, zero: Constant) -> Constant:
    def load() -> np.ndarray:
        numbers = x.array.astype(np.float32) - zero.array
        return np.asarray(numbers * scale.array, np.float32)

    return Constant(x.shape, "float32", load, f"{x.name}_restored" if x.name else "")
