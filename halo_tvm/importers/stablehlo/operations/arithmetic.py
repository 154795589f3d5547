"""Element by element, and products."""

from __future__ import annotations

from jax import lax
from jax import numpy as jnp
from jaxlib.mlir.dialects import stablehlo

from .._operation import Operation, Value, operation

# Functions of jax.lax that take the operands in the same order, under the same name or another.
_SAME = (
    "abs add atan2 cbrt ceil clamp complex floor imag is_finite log logistic real rsqrt select shift_left "
    "shift_right_arithmetic shift_right_logical sign sqrt tan tanh"
).split()
_RENAMED = {
    "and": "bitwise_and",
    "cosine": "cos",
    "count_leading_zeros": "clz",
    "divide": "div",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log_plus_one": "log1p",
    "maximum": "max",
    "minimum": "min",
    "multiply": "mul",
    "negate": "neg",
    "not": "bitwise_not",
    "or": "bitwise_or",
    "popcnt": "population_count",
    "power": "pow",
    "remainder": "rem",
    "sine": "sin",
    "subtract": "sub",
    "xor": "bitwise_xor",
}
_COMPARISONS = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


@operation(*_SAME, *_RENAMED)
def same(o: Operation) -> Value:
    return getattr(lax, _RENAMED.get(o.name, o.name))(*o.values)


for _name, _carry_out in {
    "fft": lambda o: lax.fft(o.x, lax.FftType[o.text("fft_type")], tuple(o.numbers("fft_length"))),
    "round_nearest_afz": lambda o: lax.round(o.x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_nearest_even": lambda o: lax.round(o.x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "convert": lambda o: lax.convert_element_type(o.x, o.dtype),
    "bitcast_convert": lambda o: lax.bitcast_convert_type(o.x, o.dtype),
    "reduce_precision": lambda o: lax.reduce_precision(o.x, o.number("exponent_bits"), o.number("mantissa_bits")),
    "optimization_barrier": lambda o: o.values,
}.items():
    operation(_name)(_carry_out)


@operation("compare")
def compare(o: Operation) -> Value:
    values = o.values
    if o.has("compare_type") and o.text("compare_type") == "TOTALORDER":
        values = [_ordered(v) for v in values]
    return _COMPARISONS[o.text("comparison_direction")](*values)


def _ordered(x: Value) -> Value:
    """Integers in the total order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN. Integers are in it already."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    info = jnp.iinfo(f"int{8 * x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, info.dtype)
    return jnp.where(bits < 0, bits ^ jnp.asarray(info.max, info.dtype), bits)


@operation("batch_norm_inference")
def batch_norm(o: Operation) -> Value:
    x, scale, offset, mean, variance = o.values
    axis = o.number("feature_index")
    shape = [x.shape[a] if a == axis else 1 for a in range(x.ndim)]
    epsilon = jnp.asarray(float(str(o.op.attributes["epsilon"]).split()[0]), x.dtype)
    factor = jnp.reshape(scale * lax.rsqrt(variance + epsilon), shape)
    return (x - jnp.reshape(mean, shape)) * factor + jnp.reshape(offset, shape)


@operation("dot")
def dot(o: Operation) -> Value:
    a, b = o.values
    return lax.dot_general(a, b, (((a.ndim - 1,), (0,)), ((), ())), preferred_element_type=o.dtype)


@operation("dot_general")
def dot_general(o: Operation) -> Value:
    numbers = stablehlo.DotDimensionNumbers(o.op.attributes["dot_dimension_numbers"])
    joined = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    a, b = o.values
    return lax.dot_general(a, b, (joined, batch), preferred_element_type=o.dtype)


@operation("convolution", "dynamic_conv")
def convolution(o: Operation) -> Value:
    numbers = stablehlo.ConvDimensionNumbers(o.op.attributes["dimension_numbers"])
    axes = lax.ConvDimensionNumbers(
        (numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions),
        (
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ),
        (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions),
    )
    count = len(numbers.input_spatial_dimensions)
    x, weight = o.values[:2]
    mirrored = [a for a, v in zip(numbers.kernel_spatial_dimensions, o.numbers("window_reversal", [0] * count)) if v]
    flat = o.sizes(2) if o.name == "dynamic_conv" else ()
    return lax.conv_general_dilated(
        x,
        lax.rev(weight, mirrored) if mirrored else weight,
        o.numbers("window_strides", [1] * count),
        list(zip(flat[::2], flat[1::2], strict=True)) if flat else o.pairs("padding", count),
        o.numbers("lhs_dilation", [1] * count),
        o.numbers("rhs_dilation", [1] * count),
        axes,
        o.number("feature_group_count"),
        o.number("batch_group_count"),
        preferred_element_type=o.dtype,
    )
