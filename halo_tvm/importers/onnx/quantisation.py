"""Quantised numbers: QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, of ONNX and of onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...relay_ops.quantisation_grid import QuantisationGrid
from ..meaning.builder import expr_shape
from ..meaning.constant import Constant, numpy_dtype
from ..meaning.sizes import Dim
from ._integer import centred, saturated, vector_for
from ._narrow import decoded, is_float, is_narrow
from ._node import Node
from ._registry import converter
from ._rounded import Grid, rounded_when_read, spread
from ._spell import derived, divide, multiply, rounded
from ._values import Tensor, element_dtype
from .casting import converted, float4

_INTEGERS = ("uint8", "int8", "uint16", "int16")


@converter("QuantizeLinear")
@converter("QuantizeLinear", domain="com.microsoft")
def quantize(node: Node) -> relax.Expr | Tensor | Constant:
    """saturate(round(x / scale) + zero); a weight is rounded when it is loaded."""
    kind = int(node.attr("output_dtype", 0))
    target = node.dtype(2) if node.has(2) else element_dtype(kind) if kind else "uint8"
    node.refuse_unless(
        target in _INTEGERS or is_narrow(target) or _is_float8(target),
        f"expected a type of {', '.join(_INTEGERS)}, found {target}",
    )
    narrow = node.dtype(0) if node.dtype(0) in ("float16", "bfloat16") else "float32"
    precision = int(node.attr("precision", 0))
    if precision:
        narrow = element_dtype(precision)
    node.refuse_unless(
        narrow in ("float32", "float16", "bfloat16"), f"expected a 16- or 32-bit precision, found {narrow}"
    )
    if node.is_known(1):
        scales = node.constant(1).astype(np.float32)
        node.refuse_unless(
            bool(np.all(np.isfinite(scales) & (scales > 0))), "expected a scale above 0, found zero, NaN or less"
        )
    if all(value is None or isinstance(value, Constant) for value in node.inputs[:3]):
        known = _rounded(node, narrow, target)
        if known is not None:
            return known
    x = node.cast(node.x(0), "float32")
    scale = node.cast(_spread(node, 1), "float32")
    # The quotient of two narrow numbers, rounded twice, is the one rounded once: float32 has enough digits.
    quotient = rounded(node, divide(node, x, scale), narrow)
    if is_float(target) or _is_float8(target):  # the zero point of floats is 0
        return float4(node, quotient, target) if is_float(target) else converted(node, quotient, target)
    out = saturated(node, quotient, _spread(node, 2) if node.has(2) else None, target)
    return Tensor(out, target) if is_narrow(target) else out


@converter("DequantizeLinear")
@converter("DequantizeLinear", domain="com.microsoft")
def dequantize(node: Node) -> relax.Expr | Constant:
    """(x - zero) * scale; a weight is restored when it is loaded."""
    kind = int(node.attr("output_dtype", 0))
    target = element_dtype(kind) if kind else node.dtype(1)
    if node.has(2):
        wanted, found = node.dtype(0), node.dtype(2)
        node.refuse_unless(found == wanted, f"expected a zero point of {wanted}, as the input is, found {found}")
    values = [node.inputs[i] if node.has(i) else None for i in range(3)]
    if all(v is None or isinstance(v, Constant) for v in values):
        return _restored(node, values, target)
    if _is_float8(node.dtype(0)):
        numbers = converted(node, node.x(0), "float32")
        return node.cast(multiply(node, numbers, node.cast(_spread(node, 1), "float32")), target)
    node.refuse_unless(
        node.dtype(0) in (*_INTEGERS, "int32") or is_narrow(node.dtype(0)),
        f"expected integers of at most 32 bits, found {node.dtype(0)}",
    )
    if is_float(node.dtype(0)):
        numbers = decoded(node, node.stored(0), node.dtype(0))
        return node.cast(multiply(node, numbers, node.cast(_spread(node, 1), "float32")), target)
    x = node.cast(centred(node, node.stored(0), _spread(node, 2) if node.has(2) else None), "float32")
    return node.cast(multiply(node, x, node.cast(_spread(node, 1), "float32")), target)


def _restored(node: Node, values: list[Constant | None], target: str) -> Constant:
    x, scale, zero = values
    rank = len(x.shape)
    axis, block = _axis(node, rank), int(node.attr("block_size", 0))
    for grid in (scale, zero):
        if grid is not None:
            _check_grid(node, grid.shape, x.shape, axis, block)

    def load() -> np.ndarray:
        out = x.load().astype(np.float32)
        if zero is not None:
            out = out - spread(zero.array.astype(np.float32), x.shape, axis, block)
        return (out * spread(scale.array.astype(np.float32), x.shape, axis, block)).astype(numpy_dtype(target))

    return derived(x, load, target)


def _rounded(node: Node, narrow: str, target: str) -> Constant | None:
    """A weight on its grid, where all of both is known."""
    weight, shape = node.value(0), node.shape(0)
    assert isinstance(weight, Constant), "the caller asked"
    axis, block = _axis(node, len(shape)), int(node.attr("block_size", 0))
    scale, zero = (node.constant(i) if node.has(i) else None for i in (1, 2))
    for values in (scale, zero):
        if values is not None:
            _check_grid(node, values.shape, shape, axis, block)
    return rounded_when_read(
        node, weight, Grid(scale, zero, axis, block, narrow, target, bool(node.attr("saturate", 1)))
    )


def _is_float8(dtype: str) -> bool:
    return dtype.startswith(("float8_e4", "float8_e5"))


def _axis(node: Node, rank: int) -> int:
    axis = int(node.attr("axis", 1))
    return axis + rank if axis < 0 else axis


def _spread(node: Node, index: int) -> relax.Expr:
    """Scale or zero point as a tensor that broadcasts to the input: one number, one per slice, or one per block."""
    shape = node.shape(0)
    axis, block = _axis(node, len(shape)), int(node.attr("block_size", 0))
    x = node.stored(index)
    found = expr_shape(x)
    _check_grid(node, found, shape, axis, block)
    if not block or len(found) == 0:
        return vector_for(node, x, len(shape), axis)
    wide: list[Dim] = [*found[: axis + 1], 1, *found[axis + 1 :]]
    x = node.emit(relax.op.broadcast_to(node.reshape(x, wide), [*wide[: axis + 1], block, *wide[axis + 2 :]]))
    x = node.reshape(x, [*found[:axis], node.sizes.product([found[axis], block]), *found[axis + 1 :]])
    if node.sizes.is_equal(expr_shape(x)[axis], shape[axis]):
        return x
    return node.emit(relax.op.strided_slice(x, [axis], [0], [shape[axis]]))


def _check_grid(node: Node, found: Sequence[Dim], shape: Sequence[Dim], axis: int, block: int) -> None:
    """Refuse a shape of scales or zero points that is not one number, one per slice along `axis`, or one per block."""
    count = node.sizes.product(found)
    if not found or not block and (not isinstance(count, int) or count == 1):
        return
    node.refuse_unless(0 <= axis < len(shape), f"expected an axis below {len(shape)}, found {axis}")
    if not block:
        fits = not isinstance(shape[axis], int) or shape[axis] == count
        node.refuse_unless(fits, f"expected one scale, or {shape[axis]} along axis {axis}, found {count}")
        return
    node.refuse_unless(block > 0, f"expected a block_size of 0 or more, found {block}")
    wanted = [-(-d // block) if a == axis and isinstance(d, int) else d for a, d in enumerate(shape)]
    known = [(f, w) for f, w in zip(found, wanted) if isinstance(f, int) and isinstance(w, int)]
    node.refuse_unless(
        len(found) == len(shape) and all(f == w for f, w in known),
        f"expected one number per block of {block} along axis {axis}, of the shape {wanted}, found {list(found)}",
    )


@converter("DynamicQuantizeLinear")
def dynamic_quantize(node: Node) -> tuple[relax.Expr, ...]:
    return quantised(node, node.cast(node.x(0), "float32"))


def quantised(node: Node, x: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """`x` as uint8 over its own range, which is made to include 0, with its scale and zero point."""
    grid = node.block.emit(QuantisationGrid.call(x))
    scale, zero = (node.emit(relax.TupleGetItem(grid, i)) for i in range(2))
    return saturated(node, divide(node, x, scale), zero, "uint8"), scale, zero
