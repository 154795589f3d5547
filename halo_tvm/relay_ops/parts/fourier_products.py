"""A Fourier transform as a product with a matrix of waves, or as two with smaller ones (Cooley and Tukey, 1965).

With n = n1 * width + n2 and k = k1 + height * k2, for a length of height * width:

    X[k] = sum over n2 of wave(n2 k1 / length) wave(n2 k2 / width) (sum over n1 of x[n] wave(n1 k1 / height))

A length of 1024 takes 130 thousand products where one matrix takes a million. Both parts of a number stand in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from tvm import ir, relax, te, tirx

from .fourier_transform import Transform

_LARGEST_MATRIX = 1 << 22  # elements
_SHORTEST = 512
_WORTH = 4  # times fewer products than one matrix: tensors are read and written three times more


class Emitter(Protocol):
    """Where the operators of a transform go."""

    def emit(self, expr: relax.Expr) -> relax.Expr: ...

    def te(self, function: Callable[..., te.Tensor], *args: object, name: str) -> relax.Expr: ...

    def table(self, shape: tuple[int, ...], load: Callable[[], np.ndarray], name: str) -> relax.Expr:
        """float32 numbers that are known now."""


def by_products(e: Emitter, x: relax.Expr, t: Transform) -> relax.Expr | None:
    """x [..., given, parts] -> [..., outputs, results]; None where its matrices were too large."""
    if split := _split(t):
        return _in_steps(e, x, split, t)
    if t.given * t.parts * t.outputs * t.results > _LARGEST_MATRIX:
        return None
    *lead, _, _ = x.ty.shape.values
    flat = e.emit(relax.op.reshape(x, [*lead, t.given * t.parts]))
    name = f"dft_{t.given}x{t.parts}_{t.length}_{t.outputs}x{t.results}_{int(t.inverse)}"
    matrix = e.table((t.given * t.parts, t.outputs * t.results), partial(_matrix, t), name)
    return e.emit(relax.op.reshape(e.emit(relax.op.matmul(flat, matrix)), [*lead, t.outputs, t.results]))


def _matrix(t: Transform) -> np.ndarray:
    """[given * parts, outputs * results]: input part p of element n to output part q of element k."""
    back = t.results == 1
    n, k = np.arange(t.given)[:, None], np.arange(t.outputs)[None, :]
    place = (n * k) % t.length
    angle = (2 * np.pi / t.length) * place
    # exactly 0 where it is, with the sign +: an angle of a real number is 0 or pi, not -pi
    cos = np.where(4 * place % (2 * t.length) == t.length, 0.0, np.cos(angle))
    sin = np.where(2 * place % t.length == 0, 0.0, np.sin(angle) * (-1 if not t.inverse else 1))
    share = np.where(n < t.used, 1.0, 0.0)
    if back:
        ends = (n == 0) | ((t.length % 2 == 0) & (n == t.length // 2))
        share = share * np.where(ends, 1.0, 2.0)
    share = share / t.length if t.inverse else share
    out = np.zeros((t.given, t.parts, t.outputs, t.results))
    out[:, 0, :, 0] = cos * share
    if t.results == 2:
        out[:, 0, :, 1] = sin * share
    if t.parts == 2:
        out[:, 1, :, 0] = -sin * share
        if t.results == 2:
            out[:, 1, :, 1] = cos * share
    return out.reshape(t.given * t.parts, t.outputs * t.results).astype(np.float32)


def _split(t: Transform) -> tuple[int, int] | None:
    """(height, width) of a transform that is worth two products; None where one is better, as for a prime length."""
    if t.length < _SHORTEST:
        return None
    height = next(a for a in range(math.isqrt(t.length), 0, -1) if t.length % a == 0)
    width = t.length // height
    columns = -(-t.outputs // height)
    steps = t.length * t.parts * height * 2 + height * (2 * width) * (t.results * columns)
    half = t.length // 2 + 1
    whole = t.outputs * t.results * (half * 2 if t.results == 1 else t.length * t.parts)
    return (height, width) if whole >= _WORTH * steps else None


def _in_steps(e: Emitter, x: relax.Expr, split: tuple[int, int], t: Transform) -> relax.Expr:
    """Of one result, x is half a spectrum and the rest mirrors it."""
    height, width = split
    columns, share = -(-t.outputs // height), 1 / t.length if t.inverse else 1.0
    name = f"{height}x{width}_{int(t.inverse)}"

    def waves(what: str, length: int, outputs: int, parts: int, results: int, share: float) -> relax.Expr:
        load = partial(_waves, length, outputs, parts, results, t.inverse, share)
        return e.table((parts * length, results * outputs), load, f"dft_{what}_{name}_{parts}_{outputs}x{results}")

    turns = e.table((2, height, width), partial(_turns, height, width, t.inverse), f"dft_turns_{name}")
    rows = e.te(_rows, x, height, width, t.used, t.results == 1, name="dft_rows")
    product = e.emit(relax.op.matmul(rows, waves("rows", height, height, t.parts, 2, 1.0)))
    *lead, _, _ = product.ty.shape.values
    turned = e.te(_turned, product, turns, height, width, name="dft_turn")
    turned = e.emit(relax.op.reshape(turned, [*lead, height, 2 * width]))
    product = e.emit(relax.op.matmul(turned, waves("columns", width, columns, 2, t.results, share)))
    real = t.length if t.parts == 1 and t.results == 2 else 0
    return e.te(_in_order, product, height, columns, t.outputs, t.results, real, name="dft_order")


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
    """[*lead, n2, 2 * k1] -> [*lead, k1, 2, n2], each number turned by its angle.

    Parts are an axis of their own: TVM simplifies what a Select gives as if its condition held, and where one axis
    were both, places of one part would be beyond the end of the tensor for the other, which is read as well.
    """

    def at(*i: tirx.Var) -> ir.Expr:
        row, part, column = i[-3:]
        real, imaginary = x[(*i[:-3], column, row)], x[(*i[:-3], column, height + row)]
        cos, sin = turn[0, row, column], turn[1, row, column]
        return tirx.Select(part.equal(0), real * cos - imaginary * sin, real * sin + imaginary * cos)

    return te.compute([*x.shape[:-2], height, 2, width], at, name="turn")


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
