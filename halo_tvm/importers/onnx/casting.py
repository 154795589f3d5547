"""Cast, CastLike and BitCast, float8 included: those are encoded and decoded in integers here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from tvm import relax, te, tirx

from ..meaning.builder import expr_dtype
from ..meaning.pointwise import HALVES, Scalar, const, pointwise
from ._narrow import decoded, is_float, is_narrow, wrapped
from ._node import Node
from ._registry import converter
from ._values import Tensor, Value, element_dtype


@dataclass(frozen=True)
class _Format:
    """A float of 8 bits: sign, exponent, mantissa; magnitudes are the codes 0 .. `largest`."""

    mantissa: int  # bits
    bias: int
    largest: int  # code of the largest number
    beyond: int  # code of what is too large, where that does not saturate
    nan: int
    has_negative_zero: bool = True


_FORMATS = {
    "float8_e4m3fn": _Format(3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": _Format(3, 8, 0x7F, 0x80, 0x80, has_negative_zero=False),
    "float8_e5m2": _Format(2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e5m2fnuz": _Format(2, 16, 0x7F, 0x80, 0x80, has_negative_zero=False),
}
_FLOAT4 = _Format(1, 1, 7, 7, 0x80)  # of the low half of a byte, but for the sign; NaN becomes -0
_ABOVE_ALL = 131072.0  # more than any of them holds
_POWERS = "float8_e8m0fnu"  # powers of two, without sign
_CARRIED = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()
) | {*_FORMATS, _POWERS}


@converter("Cast")
def cast(node: Node) -> relax.Expr | Value:
    return _cast(node, _target(node, node.attr("to")))


@converter("CastLike")
def cast_like(node: Node) -> relax.Expr | Value:
    return _cast(node, node.dtype(1))


def _cast(node: Node, to: str) -> relax.Expr | Value:
    """Between any two types; those of less than a byte go through one that has bytes."""
    source = node.dtype(0)
    if source == to:
        return node.value(0)
    x = decoded(node, node.stored(0), source) if is_narrow(source) else node.x(0)
    if not is_narrow(to):
        return converted(node, x, to)
    if not is_float(to):
        middle = converted(node, x, "int32")
        return wrapped(node, node.bind(middle), to)
    middle = converted(node, x, "float32")
    return float4(node, node.bind(middle), to)


def float4(node: Node, x: relax.Expr, kind: str) -> Tensor:
    """float32 as codes of float4: ties to even, the largest number for what is too large."""

    def code(value: Scalar) -> Scalar:
        byte = _code(value, _FLOAT4, True)
        return (byte & const(7, "uint8")) | ((byte >> const(4, "uint8")) & const(8, "uint8"))

    return Tensor(pointwise(node, code, x, name="to_float4"), kind)


def _target(node: Node, to: int) -> str:
    name = onnx.TensorProto.DataType.Name(to)
    node.refuse_unless(
        to not in (onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128),
        f"expected numbers, found a conversion to {name}",
    )
    return element_dtype(to)


def converted(node: Node, x: relax.Expr, to: str) -> relax.Expr:
    """`x` in the type `to`, by the rules of Cast."""
    source = expr_dtype(x)
    for dtype in (source, to):
        node.refuse_unless(dtype in _CARRIED, f"tensors of {dtype} cannot be carried")
    if source == to:
        return x
    if source in _FORMATS or source == _POWERS:
        return converted(node, _decoded(node, x), to) if to != "float32" else _decoded(node, x)
    if to in _FORMATS or to == _POWERS:
        x = node.emit(converted(node, x, "float32")) if source != "float32" else x
        return _encoded(node, x, to)
    if to == "bool":
        return relax.op.not_equal(x, relax.const(0, source))  # an operator that lifts of masks can read
    step = _through(source, to)
    if step is not None:
        x = node.emit(relax.op.astype(x, step))
    return relax.op.astype(x, to)


def _through(source: str, to: str) -> str | None:
    """The type on the way: so that numbers out of range wrap, and no conversion is left to a library."""
    if "float" in source and to in ("int8", "uint8", "int16", "uint16"):
        return "int32"
    if "float" in source and to == "uint32":
        return "int64"
    if source in HALVES or to in HALVES:
        return "float32" if "float32" not in (source, to) else None
    return None


def _decoded(node: Node, x: relax.Expr) -> relax.Expr:
    """float8 as float32, by a table of the 256 values."""
    import ml_dtypes

    with np.errstate(all="ignore"):
        values = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, expr_dtype(x))).astype(np.float32)
    table = relax.const(values, "float32")

    def look_up(x: te.Tensor, table: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: table(tirx.reinterpret("uint8", x(*i)).astype("int32")), name="decoded")

    return node.te(look_up, x, table, name="onnx_from_float8")


def _encoded(node: Node, x: relax.Expr, to: str) -> relax.Expr:
    """float32 as float8, ties to even."""
    saturate = bool(node.attr("saturate", 1))
    if to == _POWERS:
        mode = node.attr("round_mode", "up")
        node.refuse_unless(mode in ("up", "down", "nearest"), f"expected up, down or nearest, found {mode}")
        return pointwise(node, lambda v: tirx.reinterpret(to, _power_code(v, saturate, mode)), x, name="to_float8")
    return pointwise(node, lambda v: tirx.reinterpret(to, _code(v, _FORMATS[to], saturate)), x, name="to_float8")


def _int(value: int) -> Scalar:
    return tirx.const(value, "int32")


def _code(x: Scalar, form: _Format, saturate: bool) -> Scalar:
    """Choices are arithmetic here: the vectoriser gives up on comparisons of what is shifted by vectors."""
    size = tirx.min(tirx.abs(x), const(_ABOVE_ALL, "float32"))
    exponent = tirx.max((tirx.reinterpret("int32", size) >> _int(23)) - _int(127), _int(1 - form.bias))
    # Units of the last place, rounded: below 2^(mantissa + 1), or equal, when the exponent grows by itself.
    factor = tirx.reinterpret("float32", (_int(form.mantissa + 127) - exponent) << _int(23))
    units = tirx.nearbyint(size * factor).astype("int32")
    code = ((exponent + _int(form.bias - 1)) << _int(form.mantissa)) + units
    if saturate:
        code = tirx.min(code, _int(form.largest))
    else:
        beyond = tirx.min(tirx.max(code - _int(form.largest), _int(0)), _int(1))
        code = tirx.min(code, _int(form.largest)) + beyond * _int(form.beyond - form.largest)
    sign = (tirx.reinterpret("int32", x) >> _int(24)) & _int(0x80)
    if not form.has_negative_zero:
        sign = sign * tirx.min(code, _int(1))
    return tirx.Select(tirx.isnan(x), _int(form.nan), code | sign).astype("uint8")


def _power_code(x: Scalar, saturate: bool, mode: str) -> Scalar:
    """The exponent of x, rounded as `mode` says; 255 is NaN."""
    bits = tirx.reinterpret("int32", x)
    exponent, rest = (bits >> _int(23)) & _int(255), bits & _int(0x7FFFFF)
    if mode == "down":
        code = exponent
    else:
        # Nearest: from the middle on, but not from exactly there where the exponent is 0.
        up = (
            rest > _int(0)
            if mode == "up"
            else tirx.any(rest > _int(0x400000), tirx.all(rest == _int(0x400000), exponent > _int(0)))
        )
        code = exponent + tirx.Select(up, _int(1), _int(0))
    if saturate:
        code = tirx.min(code, _int(254))
    return tirx.Select(exponent == _int(255), _int(255), code).astype("uint8")


@converter("BitCast")
def bit_cast(node: Node) -> relax.Expr:
    to, x = _target(node, node.attr("to")), node.x(0)
    source = expr_dtype(x)
    for dtype in (source, to):
        node.refuse_unless(dtype in _CARRIED, f"tensors of {dtype} cannot be carried")
    if source == to:
        return x
    node.refuse_unless(_bits(source) == _bits(to), f"expected types of equal size, found {source} and {to}")
    if "bool" in (source, to):  # a byte that is 0 or 1
        return relax.op.astype(node.emit(relax.op.astype(x, "uint8")) if source == "bool" else x, to)

    def view(value: Scalar) -> Scalar:
        return tirx.reinterpret(to, value)

    return pointwise(node, view, x)


def _bits(dtype: str) -> int:
    return 8 if dtype == "bool" or dtype.startswith("float8") else int("".join(c for c in dtype if c.isdigit()))
