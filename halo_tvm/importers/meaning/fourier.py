"""Discrete Fourier transforms of tensors whose last axis holds the real and the imaginary part.

A transform is `halo.fourier`, a product with matrices of waves where that is faster or the length has large primes, or
a sum that reads its waves from a table of one period.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import ir, relax, te, tirx

from ...relay_ops import OPERATORS
from ...relay_ops.parts.fourier_planes import LANES
from ...relay_ops.parts.fourier_products import by_products
from ...relay_ops.parts.fourier_transform import Transform
from .builder import Builder, expr_shape
from .constant import Constant
from .sizes import Dim, prim


def transform(b: Builder, x: relax.Expr, length: Dim, inverse: bool, onesided: bool, axis: int = -2) -> relax.Expr:
    """The transform of length `length` along an axis, `axis`, in front of the last, which holds 1 or 2 parts."""
    shape = expr_shape(x)
    rank, axis = len(shape), axis % len(shape)
    given, parts = shape[axis], shape[-1]
    half = b.sizes.simplify(b.sizes.floordiv(length, 2) + 1)
    back = inverse and onesided  # half a spectrum to a real signal
    outputs = half if onesided and not inverse else length
    results = 1 if back else 2
    used = b.sizes.minimum(given, half if back else length)
    known = None
    if all(isinstance(s, int) for s in (given, used, length, outputs)) and str(x.ty.dtype) == "float32":
        known = Transform(length, given, used, parts, outputs, results, inverse)
        inner = b.sizes.product(shape[axis + 1 : -1])
        if known.is_served and isinstance(inner, int) and (inner == 1 or inner >= LANES):
            return _of_lines(b, x, axis, inner, known)
    order = [i for i in range(rank - 1) if i != axis] + [axis, rank - 1]
    out = _of_rows(b, _permuted(b, x, order), known)
    if out is None:
        out = b.te(_summed(parts, results, inverse, back), _permuted(b, x, order), used, length, outputs)
    return _permuted(b, out, [order.index(i) for i in range(rank)])


def _of_rows(b: Builder, x: relax.Expr, t: Transform | None) -> relax.Expr | None:
    """Along the axis in front of the last; None of a transform that is not known, or whose matrices were too large."""
    if t is None:
        return None
    return _of_lines(b, x, x.ty.ndim - 2, 1, t) if t.is_served else by_products(_Emitted(b), x, t)


def _of_lines(b: Builder, x: relax.Expr, axis: int, inner: int, t: Transform) -> relax.Expr:
    """Along `axis`, with `inner` neighbours of each number behind it."""
    shape = expr_shape(x)
    lead, behind = shape[:axis], shape[axis + 1 : -1]
    rows = b.sizes.product(lead)
    lines = [rows, t.given * t.parts] if inner == 1 else [rows, t.given, inner * t.parts]
    table = b.weight(Constant((t.table_size,), "float32", t.table, f"fourier_{t.numbers}_of_{t.length}"))
    out = b.emit(OPERATORS["fourier"].call(b.emit(relax.op.reshape(x, lines)), table, **t.attributes))
    return b.emit(relax.op.reshape(out, [*lead, t.outputs, *behind, t.results]))


def _permuted(b: Builder, x: relax.Expr, order: list[int]) -> relax.Expr:
    return x if order == list(range(len(order))) else b.emit(relax.op.permute_dims(x, order))


class _Emitted:
    """Tables as weights of the model."""

    def __init__(self, b: Builder) -> None:
        self.emit, self.te, self._b = b.emit, b.te, b

    def table(self, shape: tuple[int, ...], load: Callable[[], np.ndarray], name: str) -> relax.Expr:
        return self._b.weight(Constant(shape, "float32", load, name))


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
