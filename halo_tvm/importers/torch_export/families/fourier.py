"""Fourier transforms of torch along one or several axes.

torch scales a transform by nothing (0), by 1 / sqrt(n) (1) or by 1 / n (2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax, tirx

from ...meaning.fourier import transform
from .._call import Call, constant, fixed
from .._complex import ComplexCall, Pair
from .._registry import converter


@converter("_fft_r2c.default", of_complex=True)
def from_real(c: Call) -> Pair:
    """Along the last of the axes the input is real; half of the result says all."""
    *others, last = (int(d) % c.rank("self") for d in c["dim"])
    one = c.reshape(c["self"], [*c.shape_of("self"), 1])
    x = _along(c, one, last, c.shape_of("self")[last], False, bool(c["onesided"]))
    for axis in others:
        x = _along(c, x, axis, c.shape_of("self")[axis], False, False)
    return Pair(together=_scaled(c, x, [*others, last], c.shape_of("self"), False))


@converter("_fft_c2c.default", of_complex=True)
def of_complex(c: Call) -> Pair:
    axes, inverse = [int(d) % c.rank("self") for d in c["dim"]], not c["forward"]
    x = ComplexCall(c).joined(c["self"])
    for axis in axes:
        x = _along(c, x, axis, c.shape[axis], inverse, False)
    return Pair(together=_scaled(c, x, axes, c.shape, inverse))


@converter("_fft_c2r.default", of_complex=True)
def to_real(c: Call) -> relax.Expr:
    *others, last = (int(d) % c.rank("self") for d in c["dim"])
    x = ComplexCall(c).joined(c["self"])
    for axis in others:
        x = _along(c, x, axis, c.shape[axis], True, False)
    x = _along(c, x, last, c.shape[last], True, True)
    return c.reshape(_scaled(c, x, [*others, last], c.shape, True), c.shape)


def _along(c: Call, x: relax.Expr, axis: int, length: object, inverse: bool, onesided: bool) -> relax.Expr:
    size = int(length) if isinstance(length, tirx.IntImm) else length
    return transform(c, x, size, inverse, onesided, axis)


def _scaled(c: Call, x: relax.Expr, axes: Sequence[int], shape: Sequence[object], inverse: bool) -> relax.Expr:
    """`transform` divides by n where it goes back, and not where it goes forth: what is left to do."""
    power = (0.0, 0.5, 1.0)[int(c["normalization"])] - float(inverse)
    if power == 0:
        return x
    factor = math.prod(fixed(shape[axis], "the length of a scaled transform") for axis in axes) ** -power
    return c.emit(relax.op.multiply(x, constant(factor, str(x.ty.dtype))))
