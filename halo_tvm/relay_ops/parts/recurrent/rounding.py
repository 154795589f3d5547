"""Values rounded as dynamic quantisation to 8 bits rounds them, without leaving floating point.

    scale = (max(x, 0) - min(x, 0)) / 255, or 1 for zeros only;   level = round(-min(x, 0) / scale)
    x  ->  (clamp(round(x / scale) + level, 0, 255) - level) * scale
A product of such values and restored 8-bit weights is the integer product up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax, tirx
from tvm.ir import Expr

from ...quantisation_grid import QuantisationGrid

LEVELS = 255.0


def grid_of(low: Expr, high: Expr) -> tuple[Expr, Callable[[Expr], Expr]]:
    """The scale for values between `low` and `high`, 0 among them, and the level of 0 for a scale."""

    def constant(value: float) -> Expr:
        return tirx.const(value, low.ty.dtype)

    scale = tirx.Select(high > low, (high - low) / constant(LEVELS), constant(1.0))
    zero = constant(0.0)
    return scale, lambda s: tirx.nearbyint(tirx.max(tirx.min((zero - low) / s, constant(LEVELS)), zero))


def levels_of(x: Expr, scale: Expr, level: Expr) -> Expr:
    """Where `x` lies on the grid, 0 to 255."""
    levels = tirx.nearbyint(x / scale) + level
    return tirx.max(tirx.min(levels, tirx.const(LEVELS, x.ty.dtype)), tirx.const(0.0, x.ty.dtype))


def rounding(x: Expr, scale: Expr, level: Expr) -> Expr:
    """`x` on the grid."""
    return (levels_of(x, scale, level) - level) * scale


def rounded_tensor(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Var:
    """A whole tensor rounded on one grid, as operators."""
    dtype = str(x.ty.dtype)

    def constant(value: float) -> relax.Expr:
        return relax.const(np.array(value, dtype), dtype)

    def emit(expr: relax.Expr) -> relax.Var:
        return bb.emit(expr)

    op = relax.op
    low, high = emit(op.minimum(emit(op.min(x)), constant(0))), emit(op.maximum(emit(op.max(x)), constant(0)))
    step = emit(op.divide(emit(op.subtract(high, low)), constant(LEVELS)))
    scale = emit(op.where(emit(op.greater(step, constant(0))), step, constant(1)))
    level = emit(op.round(emit(op.divide(emit(op.negative(low)), scale))))
    return emit(op.multiply(emit(op.subtract(_on_grid(bb, x, scale, level), level)), scale))


def quantised_tensor(bb: relax.BlockBuilder, x: relax.Expr) -> tuple[relax.Var, relax.Var, relax.Var]:
    """A whole tensor in uint8 on one grid, its scale and what it holds for 0, as operators."""
    grid = bb.emit(QuantisationGrid.expand(bb, bb.normalize(QuantisationGrid.call(x))))
    scale, zero = (bb.emit(relax.TupleGetItem(grid, i)) for i in range(2))
    level = bb.emit(relax.op.astype(zero, str(x.ty.dtype)))
    return bb.emit(relax.op.astype(_on_grid(bb, x, scale, level), "uint8")), scale, zero


def _on_grid(bb: relax.BlockBuilder, x: relax.Expr, scale: relax.Expr, level: relax.Expr) -> relax.Var:
    """`levels_of`, as operators."""
    op, dtype = relax.op, str(x.ty.dtype)
    least, most = (relax.const(np.array(end, dtype), dtype) for end in (0.0, LEVELS))
    levels = bb.emit(op.add(bb.emit(op.round(bb.emit(op.divide(x, scale)))), level))
    return bb.emit(op.minimum(bb.emit(op.maximum(levels, least)), most))


def rounded_array(x: np.ndarray) -> np.ndarray:
    """NumPy's version of the same."""
    low, high = min(x.min(initial=0), 0), max(x.max(initial=0), 0)
    scale = (high - low) / LEVELS if high > low else 1.0
    level = np.clip(np.rint(-low / scale), 0, LEVELS)
    return ((np.clip(np.rint(x / scale) + level, 0, LEVELS) - level) * scale).astype(x.dtype)
