"""Eigenvalues and singular values, with their vectors, whose signs are open: other programs give their opposites.

Singular values are lengths of rows that are orthogonal: eigenvectors make them so but for rounding, rotations of two
rows at a time (Jacobi's) until no cosine is above `unit`.
G. H. Golub, C. F. Van Loan, Matrix Computations, 8.5 and 8.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, te, tirx
from tvm.script.ir_builder import tirx as T

from .factorisations import cell, each_matrix, made
from .tridiagonal import diagonalise

_LANES = 8
_SWEEPS = 40  # at most: they end when a sweep turns nothing


def eigenvectors(x: te.Tensor) -> list[te.Tensor]:
    """Symmetric [b, n, n] -> eigenvalues [b, n], not in order, and their vectors as rows [b, n, n]."""
    batch, n, _ = x.shape
    dtype = str(x.dtype)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (x,), (values, vectors, work, *parts) = ins, outs
        with each_matrix(batch) as b, T.seq_scope():
            with T.grid(n, n) as (i, j):
                work[b, i, j] = x[b, i, j]
            diagonalise(work, vectors, values, tuple(parts), b, n)

    square, vector = (x.shape, dtype), ([batch, n], dtype)
    return made("eigh", [x], [vector, square, square, vector, vector, vector], nest)[:2]


def singular_rows(x: te.Tensor, unit: float) -> list[te.Tensor]:
    """[b, n, m], n <= m -> singular values [b, n], not in order; unit rows [b, n, m]; T [b, n, n]: T x = values * rows.

    A row whose value is 0 is made of a unit vector that is orthogonal to the others.
    """
    batch, n, m = x.shape
    dtype = str(x.dtype)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (x,), (values, rows, turns, work, *parts) = ins, outs
        with each_matrix(batch) as b, T.seq_scope():
            rotation, dot = _Rotation(dtype), _Dot(dtype)
            sums = [cell(dtype) for _ in range(3)]
            most = cell(dtype)
            # The eigenvectors of x x^T turn the rows until they are nearly orthogonal.
            with T.serial(0, n) as i, T.serial(0, i + 1) as j:
                dot(sums[0], x, b, i, j, m)
                work[b, i, j] = sums[0][0]
                work[b, j, i] = sums[0][0]
            diagonalise(work, turns, values, tuple(parts), b, n)
            with T.grid(n, m) as (i, k):
                rows[b, i, k] = tirx.const(0, dtype)
            with T.serial(0, n) as i, T.serial(0, n) as j:
                sums[0][0] = turns[b, i, j]
                with T.serial(0, m) as k:
                    rows[b, i, k] = rows[b, i, k] + sums[0][0] * x[b, j, k]

            def pair(p: ir.Expr, q: ir.Expr) -> None:
                for total, (i, j) in zip(sums, ((p, p), (q, q), (p, q))):
                    dot(total, rows, b, i, j, m)
                limit = tirx.sqrt(sums[0][0]) * tirx.sqrt(sums[1][0]) * tirx.const(unit, dtype)
                with T.If(tirx.abs(sums[2][0]) > limit), T.Then():
                    rotation.of(*(total[0] for total in sums))
                    rotation.turn(rows, b, p, q, m)
                    rotation.turn(turns, b, p, q, n)

            rotation.sweeps(n, pair)
            most[0] = tirx.const(0, dtype)
            with T.serial(0, n) as i:
                dot(sums[0], rows, b, i, i, m)
                values[b, i] = tirx.sqrt(sums[0][0])
                most[0] = tirx.max(most[0], values[b, i])
            with T.serial(0, n) as i:
                with T.If(values[b, i] > most[0] * tirx.const(unit / 2, dtype)):
                    with T.Then(), T.serial(0, m) as k:
                        rows[b, i, k] = rows[b, i, k] / values[b, i]
                    with T.Else(), T.serial(0, m) as k:  # marked: it is filled in when the others are there
                        rows[b, i, k] = tirx.const(0, dtype)
            with T.serial(0, n) as i, T.If(values[b, i] <= most[0] * tirx.const(unit / 2, dtype)), T.Then():
                _orthogonal(rows, b, i, n, m, sums)

    square, vector = ([batch, n, n], dtype), ([batch, n], dtype)
    return made("svd", [x], [vector, (x.shape, dtype), square, square, vector, vector, vector], nest)[:3]


def _orthogonal(rows: Any, b: ir.Expr, i: ir.Expr, n: ir.Expr, m: ir.Expr, sums: Sequence[Any]) -> None:
    """Row i, of the unit vector that is farthest from all other rows, some of which may still be zeros."""
    dtype = str(rows[b, i, 0].ty.dtype)
    best, inside, part = sums
    place = cell("int64")
    best[0], place[0] = tirx.const(2, dtype), tirx.const(0, "int64")
    with T.serial(0, m) as k:
        inside[0] = tirx.const(0, dtype)
        with T.serial(0, n) as r:
            inside[0] = inside[0] + rows[b, r, k] * rows[b, r, k]
        with T.If(inside[0] < best[0]), T.Then():
            best[0], place[0] = inside[0], k.astype("int64")
    with T.serial(0, m) as k:
        rows[b, i, k] = tirx.Select(k.astype("int64") == place[0], tirx.const(1, dtype), tirx.const(0, dtype))
    with T.serial(0, 2), T.serial(0, n) as r, T.If(r != i), T.Then():  # twice: what rounding leaves goes as well
        part[0] = tirx.const(0, dtype)
        with T.serial(0, m) as k:
            part[0] = part[0] + rows[b, r, k] * rows[b, i, k]
        with T.serial(0, m) as k:
            rows[b, i, k] = rows[b, i, k] - part[0] * rows[b, r, k]
    inside[0] = tirx.const(0, dtype)
    with T.serial(0, m) as k:
        inside[0] = inside[0] + rows[b, i, k] * rows[b, i, k]
    inside[0] = tirx.sqrt(inside[0])
    with T.serial(0, m) as k:
        rows[b, i, k] = rows[b, i, k] / inside[0]


class _Dot:
    """Products of two rows, summed as vectors: one sum after the other waits for each addition."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._parts = T.buffer_proxy(T.alloc_buffer((_LANES,), dtype, scope="local"))

    def __call__(self, total: Any, rows: Any, b: ir.Expr, i: ir.Expr, j: ir.Expr, count: ir.Expr) -> None:
        parts, whole = self._parts, tirx.floordiv(count, _LANES)
        with T.serial(0, _LANES) as lane:
            parts[lane] = tirx.const(0, self._dtype)
        with T.serial(0, whole) as k, T.serial(0, _LANES) as lane:
            at = k * _LANES + lane
            parts[lane] = parts[lane] + rows[b, i, at] * rows[b, j, at]
        total[0] = tirx.const(0, self._dtype)
        with T.serial(0, _LANES) as lane:
            total[0] = total[0] + parts[lane]
        with T.serial(0, count - whole * _LANES) as k:
            total[0] = total[0] + rows[b, i, whole * _LANES + k] * rows[b, j, whole * _LANES + k]


class _Rotation:
    """A rotation of two rows, its cosine and sine in variables."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._cosine, self._sine, self._ratio, self._kept = (cell(dtype) for _ in range(4))
        self._turned = cell("int32")

    def of(self, a: ir.Expr, c: ir.Expr, b: ir.Expr) -> None:
        """The one that makes [[a, b], [b, c]] diagonal, b not 0; the smaller of the two angles."""
        one = tirx.const(1, self._dtype)
        self._ratio[0] = (c - a) / (b + b)
        ratio = self._ratio[0]
        tangent = one / (tirx.abs(ratio) + tirx.sqrt(one + ratio * ratio))
        self._sine[0] = tirx.Select(ratio < 0, -tangent, tangent)
        self._cosine[0] = one / tirx.sqrt(one + self._sine[0] * self._sine[0])
        self._sine[0] = self._sine[0] * self._cosine[0]
        self._turned[0] = tirx.const(1, "int32")

    def turn(self, data: Any, b: ir.Expr, p: ir.Expr, q: ir.Expr, count: ir.Expr) -> None:
        """The rows p and q of matrix b."""
        cosine, sine, kept = self._cosine[0], self._sine[0], self._kept
        with T.serial(0, count) as k:
            kept[0] = data[b, p, k]
            data[b, p, k] = cosine * kept[0] - sine * data[b, q, k]
            data[b, q, k] = sine * kept[0] + cosine * data[b, q, k]

    def sweeps(self, n: ir.Expr, pair: Callable[[ir.Expr, ir.Expr], None]) -> None:
        """`pair(p, q)` of all p < q, until a sweep turns none."""
        again, number = cell("int32"), cell("int32")
        again[0], number[0] = tirx.const(1, "int32"), tirx.const(0, "int32")
        with T.While(again[0] != 0):
            self._turned[0] = tirx.const(0, "int32")
            with T.serial(0, n) as p, T.serial(0, n - p - 1) as d:
                pair(p, p + 1 + d)
            number[0] = number[0] + 1
            again[0] = tirx.Select(number[0] < _SWEEPS, self._turned[0], tirx.const(0, "int32"))
