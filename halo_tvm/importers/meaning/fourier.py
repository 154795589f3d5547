"""Discrete Fourier transforms of tensors whose last axis holds the real and the imaginary part.

A transform is a product with a matrix of waves, two products with smaller ones, or a sum that reads its waves from a
table of one period.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import ir, relax, te, tirx

from .builder import Builder, expr_shape
from .constant import Constant
from .fourier_steps import factors, in_steps
from .sizes import Dim, prim

_LARGEST_MATRIX = 1 << 22  # elements; longer transforms compute their waves


def transform(b: Builder, x: relax.Expr, length: Dim, inverse: bool, onesided: bool) -> relax.Expr:
    """The transform of length `length` along the axis in front of the last, which holds 1 or 2 parts."""
    *lead, given, parts = expr_shape(x)
    dtype = str(x.ty.dtype)
    half = b.sizes.simplify(b.sizes.floordiv(length, 2) + 1)
    back = inverse and onesided  # half a spectrum to a real signal
    outputs = half if onesided and not inverse else length
    results = 1 if back else 2
    used = b.sizes.minimum(given, half if back else length)
    sizes = (given, used, length, outputs)
    known = all(isinstance(s, int) for s in sizes) and dtype == "float32"
    if known and (split := factors(length, parts, outputs, results)):
        return in_steps(b, x, split, used, outputs, results, inverse)
    if known and given * parts * outputs * results <= _LARGEST_MATRIX:
        flat = b.emit(relax.op.reshape(x, [*lead, given * parts]))
        name = f"dft_{given}x{parts}_{length}_{outputs}x{results}_{int(inverse)}"
        matrix = Constant(
            (given * parts, outputs * results),
            dtype,
            lambda: _matrix(given, used, parts, length, outputs, results, inverse, back),
            name,
        )
        product = b.emit(relax.op.matmul(flat, b.weight(matrix)))
        return b.emit(relax.op.reshape(product, [*lead, outputs, results]))
    return b.te(_summed(parts, results, inverse, back), x, used, length, outputs)


def _matrix(
    given: int, used: int, parts: int, length: int, outputs: int, results: int, inverse: bool, back: bool
) -> np.ndarray:
    """[given * parts, outputs * results]: input part p of element n to output part q of element k."""
    n, k = np.arange(given)[:, None], np.arange(outputs)[None, :]
    place = (n * k) % length
    angle = (2 * np.pi / length) * place
    # exactly 0 where it is, with the sign +: an angle of a real number is 0 or pi, not -pi
    cos = np.where(4 * place % (2 * length) == length, 0.0, np.cos(angle))
    sin = np.where(2 * place % length == 0, 0.0, np.sin(angle) * (-1 if not inverse else 1))
    share = np.where(n < used, 1.0, 0.0)
    if back:
        ends = (n == 0) | ((length % 2 == 0) & (n == length // 2))
        share = share * np.where(ends, 1.0, 2.0)
    share = share / length if inverse else share
    out = np.zeros((given, parts, outputs, results))
    out[:, 0, :, 0] = cos * share
    if results == 2:
        out[:, 0, :, 1] = sin * share
    if parts == 2:
        out[:, 1, :, 0] = -sin * share
        if results == 2:
            out[:, 1, :, 1] = cos * share
    return out.reshape(given * parts, outputs * results).astype(np.float32)


def _summed(parts: int, results: int, inverse: bool, back: bool) -> Callable[..., te.Tensor]:
    """The same sums with waves from a table of one period, for lengths that are symbolic or long."""

    def compute(x: te.Tensor, used: Dim, length: Dim, outputs: Dim) -> te.Tensor:
        wide = "float64"
        used, length, outputs = prim(used), prim(length), prim(outputs)
        step = tirx.const(2 * math.pi, wide) / length.astype(wide)
        cos = te.compute([length], lambda i: te.cos(i.astype(wide) * step), name="cos")
        zero = tirx.const(0.0, wide)
        sin = te.compute(
            [length],
            lambda i: tirx.Select(tirx.floormod(i * 2, length) == 0, zero, te.sin(i.astype(wide) * step)),
            name="sin",
        )
        n = te.reduce_axis((0, used), "n")
        sign = 1.0 if inverse else -1.0

        def element(*index: ir.Expr) -> ir.Expr:
            lead, k, part = index[:-2], index[-2], index[-1]
            at = tirx.floormod(n * k, length)
            real = x[(*lead, n, 0)].astype(wide)
            c, s = cos[at], sin[at] * tirx.const(sign, wide)
            first, second = real * c, real * s
            if parts == 2:
                imaginary = x[(*lead, n, 1)].astype(wide)
                first, second = first - imaginary * s, second + imaginary * c
            value = first if results == 1 else tirx.Select(part == 0, first, second)
            if back:
                ends = tirx.any(n == 0, n * 2 == length)
                value = value * tirx.Select(ends, tirx.const(1.0, wide), tirx.const(2.0, wide))
            return te.sum(value, axis=n)

        total = te.compute([*x.shape[:-2], outputs, results], element, name="transform")
        whole = length.astype(wide) if inverse else tirx.const(1.0, wide)
        return te.compute(total.shape, lambda *i: (total[i] / whole).astype(x.dtype), name="scaled")

    return compute
