"""A Fourier transform of composite length as two products with small matrices of waves (Cooley and Tukey, 1965).

With n = n1 * width + n2 and k = k1 + height * k2, for a length of height * width:

    X[k] = sum over n2 of wave(n2 k1 / length) wave(n2 k2 / width) (sum over n1 of x[n] wave(n1 k1 / height))

A length of 1024 takes 130 thousand products where one matrix takes a million. Both parts of a number stand in a row.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from tvm import ir, relax, te, tirx

from .builder import Builder
from .constant import Constant

_SHORTEST = 512
_WORTH = 4  # times fewer products than one matrix: tensors are read and written three times more


def factors(length: int, parts: int, outputs: int, results: int) -> tuple[int, int] | None:
    """(height, width) of a transform that is worth two products; None where one is better, as for a prime length."""
    if length < _SHORTEST:
        return None
    height = next(a for a in range(math.isqrt(length), 0, -1) if length % a == 0)
    width = length // height
    columns = -(-outputs // height)
    steps = length * parts * height * 2 + height * (2 * width) * (results * columns)
    half = length // 2 + 1
    whole = outputs * results * (half * 2 if results == 1 else length * parts)
    return (height, width) if whole >= _WORTH * steps else None


def in_steps(
    b: Builder, x: relax.Expr, split: tuple[int, int], used: int, outputs: int, results: int, inverse: bool
) -> relax.Expr:
    """x [..., n, parts] -> [..., outputs, results]; of one result, x is half a spectrum and the rest mirrors it."""
    height, width = split
    parts, columns = int(x.ty.shape.values[-1]), -(-outputs // height)
    name, share = f"{height}x{width}_{int(inverse)}", 1 / (height * width) if inverse else 1.0

    def waves(what: str, length: int, outputs: int, parts: int, results: int, share: float) -> relax.Expr:
        load = partial(_waves, length, outputs, parts, results, inverse, share)
        shape = (parts * length, results * outputs)
        return b.weight(Constant(shape, "float32", load, f"dft_{what}_{name}_{parts}_{outputs}x{results}"))

    turns = Constant((2, height, width), "float32", partial(_turns, height, width, inverse), f"dft_turns_{name}")
    rows = b.te(_rows, x, height, width, used, results == 1, name="dft_rows")
    product = b.emit(relax.op.matmul(rows, waves("rows", height, height, parts, 2, 1.0)))
    turned = b.te(_turned, product, b.weight(turns), height, width, name="dft_turn")
    product = b.emit(relax.op.matmul(turned, waves("columns", width, columns, 2, results, share)))
    real = height * width if parts == 1 and results == 2 else 0
    return b.te(_in_order, product, height, columns, outputs, results, real, name="dft_order")


def _waves(length: int, outputs: int, parts: int, results: int, inverse: bool, share: float) -> np.ndarray:
    """[parts * length, results * outputs]: part p of element n to part q of element k."""
    n, k = np.arange(length)[:, None], np.arange(outputs)[None, :]
    angle = (2 * np.pi / length) * ((n * k) % length)
    cos, sin = np.cos(angle) * share, np.sin(angle) * (share if inverse else -share)
    by_part = [[cos, sin], [-sin, cos]]
    return np.block([row[:results] for row in by_part[:parts]]).astype(np.float32)


def _turns(height: int, width: int, inverse: bool) -> np.ndarray:
    """[2, height, width]: cosine and sine of the angle between the rows' waves."""
    k, n = np.arange(height)[:, None], np.arange(width)[None, :]
    angle = (2 * np.pi / (height * width)) * ((n * k) % (height * width))
    return np.stack([np.cos(angle), np.sin(angle) if inverse else -np.sin(angle)]).astype(np.float32)


def _rows(x: te.Tensor, height: int, width: int, used: int, mirrored: bool) -> te.Tensor:
    """[*lead, n, parts] -> [*lead, n2, parts * n1], zeros beyond `used`; a mirrored half becomes a whole spectrum."""
    *lead, _, parts = x.shape
    length, zero = height * width, tirx.const(0.0, x.dtype)

    def at(*i: tirx.Var) -> ir.Expr:
        place, part = tirx.floormod(i[-1], height) * width + i[-2], tirx.floordiv(i[-1], height)
        if not mirrored:
            return tirx.if_then_else(place < used, x[(*i[:-2], place, part)], zero)
        back = place * 2 > length
        found = tirx.Select(back, length - place, place)
        value = tirx.if_then_else(found < used, x[(*i[:-2], found, part)], zero)
        conjugate = tirx.Select(tirx.all(back, part.equal(1)), -value, value)
        ends = tirx.all(tirx.any(place.equal(0), (place * 2).equal(length)), part.equal(1))
        return tirx.Select(ends, zero, conjugate)

    return te.compute([*lead, width, parts * height], at, name="rows")


def _turned(x: te.Tensor, turn: te.Tensor, height: int, width: int) -> te.Tensor:
    """[*lead, n2, 2 * k1] -> [*lead, k1, 2 * n2], each number turned by its angle."""

    def at(*i: tirx.Var) -> ir.Expr:
        row, column, part = i[-2], tirx.floormod(i[-1], width), tirx.floordiv(i[-1], width)
        real, imaginary = x[(*i[:-2], column, row)], x[(*i[:-2], column, height + row)]
        cos, sin = turn[0, row, column], turn[1, row, column]
        return tirx.Select(part.equal(0), real * cos - imaginary * sin, real * sin + imaginary * cos)

    return te.compute([*x.shape[:-2], height, 2 * width], at, name="turn")


def _in_order(x: te.Tensor, height: int, columns: int, outputs: int, results: int, real: int) -> te.Tensor:
    """[*lead, k1, results * k2] -> [*lead, k, results]. Of a `real` signal of this length the first and the middle
    element have no imaginary part, not even a rounded one: its sign decides an angle."""

    def at(*i: tirx.Var) -> ir.Expr:
        k, part = i[-2], i[-1]
        value = x[(*i[:-2], tirx.floormod(k, height), part * columns + tirx.floordiv(k, height))]
        if not real:
            return value
        ends = tirx.all(tirx.any(k.equal(0), (k * 2).equal(real)), part.equal(1))
        return tirx.Select(ends, tirx.const(0.0, x.dtype), value)

    return te.compute([*x.shape[:-2], outputs, results], at, name="order")
