"""Eigenvalues and vectors of symmetric matrices: reflections to a tridiagonal form, rotations to a diagonal one.

Vectors are rows, so that reflections and rotations run along memory.
G. H. Golub, C. F. Van Loan, Matrix Computations, 8.3; the shifts are those of EISPACK's tql2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .factorisations import cell

_MOST_STEPS = 40  # of one eigenvalue; two or three are enough


def diagonalise(work: Any, vectors: Any, values: Any, parts: tuple[Any, ...], b: ir.Expr, n: ir.Expr) -> None:
    """Statements that turn the symmetric matrix b of `work` into `values` [b, n] and the rows of `vectors` [b, n, n].

    `work` is written over, and so are three vectors [b, n]: `parts`. Values are in no order.
    """
    off, sums, others = parts
    _reflect_to_three_diagonals(work, vectors, off, sums, others, b, n)
    with T.serial(0, n) as i:
        values[b, i] = work[b, i, i]
    _rotate_to_one(vectors, values, off, b, n)


def _reflect_to_three_diagonals(
    work: Any, vectors: Any, off: Any, sums: Any, others: Any, b: ir.Expr, n: ir.Expr
) -> None:
    """The diagonal stays in `work`, what is beside it goes to `off`; row k keeps the vector of its reflection."""
    dtype = str(work[b, 0, 0].ty.dtype)
    rest, tau, beta, factor, other = (cell(dtype) for _ in range(5))
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    with T.grid(n, n) as (i, j):
        vectors[b, i, j] = tirx.Select(i == j, one, zero)
    with T.serial(0, tirx.max(n - 2, 0)) as k:
        first, count = k + 1, n - k - 1
        rest[0] = zero
        with T.serial(0, count - 1) as j:
            rest[0] = rest[0] + work[b, k, first + 1 + j] * work[b, k, first + 1 + j]
        off[b, k] = work[b, k, first]
        with T.If(rest[0] > 0), T.Then():
            beta[0] = tirx.sqrt(work[b, k, first] * work[b, k, first] + rest[0])
            beta[0] = tirx.Select(work[b, k, first] >= 0, -beta[0], beta[0])
            tau[0] = (beta[0] - work[b, k, first]) / beta[0]
            factor[0] = one / (work[b, k, first] - beta[0])
            off[b, k] = beta[0]
            work[b, k, first] = one
            with T.serial(0, count - 1) as j:
                work[b, k, first + 1 + j] = work[b, k, first + 1 + j] * factor[0]
            _combined(sums, work, work, b, k, first, first, count, count)
            other[0] = zero
            with T.serial(0, count) as j:
                sums[b, first + j] = sums[b, first + j] * tau[0]
                other[0] = other[0] + sums[b, first + j] * work[b, k, first + j]
            other[0] = other[0] * tau[0] * tirx.const(0.5, dtype)
            with T.serial(0, count) as j:
                sums[b, first + j] = sums[b, first + j] - other[0] * work[b, k, first + j]
            with T.serial(0, count) as i:
                factor[0], other[0] = work[b, k, first + i], sums[b, first + i]
                with T.serial(0, count) as j:
                    both = factor[0] * sums[b, first + j] + other[0] * work[b, k, first + j]
                    work[b, first + i, first + j] = work[b, first + i, first + j] - both
            _combined(others, work, vectors, b, k, first, 0, count, n)
            with T.serial(0, count) as i:
                factor[0] = tau[0] * work[b, k, first + i]
                with T.serial(0, n) as j:
                    vectors[b, first + i, j] = vectors[b, first + i, j] - factor[0] * others[b, j]
    off[b, n - 1] = zero
    with T.If(n >= 2), T.Then():
        off[b, n - 2] = work[b, n - 2, n - 1]


def _combined(
    out: Any, work: Any, rows: Any, b: ir.Expr, k: ir.Expr, first: ir.Expr, start: Any, count: ir.Expr, width: Any
) -> None:
    """out[start ..] = the sum of `count` rows from `first` on, each times its element of row k of `work`."""
    dtype = str(work[b, 0, 0].ty.dtype)
    factor = cell(dtype)
    with T.serial(0, width) as j:
        out[b, start + j] = tirx.const(0, dtype)
    with T.serial(0, count) as i:
        factor[0] = work[b, k, first + i]
        with T.serial(0, width) as j:
            out[b, start + j] = out[b, start + j] + factor[0] * rows[b, first + i, start + j]


def _rotate_to_one(vectors: Any, values: Any, off: Any, b: ir.Expr, n: ir.Expr) -> None:
    """Implicit QL: for each eigenvalue in turn, what lies beside it is rotated away."""
    dtype = str(values[b, 0].ty.dtype)
    g, r, s, c, p, f, h = (cell(dtype) for _ in range(7))
    end, steps, going, seeking, live = (cell("int64") for _ in range(5))
    zero, one, two = (tirx.const(v, dtype) for v in (0, 1, 2))
    yes, no = tirx.const(1, "int64"), tirx.const(0, "int64")
    with T.serial(0, n) as start:
        steps[0], going[0] = no, yes
        with T.While(going[0] != 0):
            end[0], seeking[0] = start.astype("int64"), yes
            with T.While(seeking[0] != 0):
                with T.If(end[0] >= n - 1):  # apart: both sides of an "or" are read
                    with T.Then():
                        seeking[0] = no
                    with T.Else():
                        near = tirx.abs(values[b, end[0]]) + tirx.abs(values[b, end[0] + 1])
                        with T.If(tirx.abs(off[b, end[0]]) <= tirx.const(float(np.finfo(dtype).eps), dtype) * near):
                            with T.Then():
                                seeking[0] = no
                            with T.Else():
                                end[0] = end[0] + 1
            with T.If(tirx.any(end[0] == start, steps[0] >= _MOST_STEPS)):
                with T.Then():
                    going[0] = no
                with T.Else(), T.seq_scope():
                    steps[0] = steps[0] + 1
                    g[0] = (values[b, start + 1] - values[b, start]) / (two * off[b, start])
                    r[0] = tirx.sqrt(g[0] * g[0] + one)
                    r[0] = tirx.Select(g[0] < 0, -r[0], r[0])
                    g[0] = values[b, end[0]] - values[b, start] + off[b, start] / (g[0] + r[0])
                    s[0], c[0], p[0], live[0] = one, one, zero, yes
                    with T.serial(0, end[0] - start) as t, T.If(live[0] != 0), T.Then():
                        i = end[0] - 1 - t
                        f[0], h[0] = s[0] * off[b, i], c[0] * off[b, i]
                        r[0] = tirx.sqrt(f[0] * f[0] + g[0] * g[0])
                        off[b, i + 1] = r[0]
                        with T.If(r[0] == 0):
                            with T.Then():
                                values[b, i + 1] = values[b, i + 1] - p[0]
                                off[b, end[0]] = zero
                                live[0] = no
                            with T.Else():
                                s[0], c[0] = f[0] / r[0], g[0] / r[0]
                                g[0] = values[b, i + 1] - p[0]
                                r[0] = (values[b, i] - g[0]) * s[0] + two * c[0] * h[0]
                                p[0] = s[0] * r[0]
                                values[b, i + 1] = g[0] + p[0]
                                g[0] = c[0] * r[0] - h[0]
                                with T.serial(0, n) as k:
                                    f[0] = vectors[b, i + 1, k]
                                    vectors[b, i + 1, k] = s[0] * vectors[b, i, k] + c[0] * f[0]
                                    vectors[b, i, k] = c[0] * vectors[b, i, k] - s[0] * f[0]
                    with T.If(live[0] != 0), T.Then():
                        values[b, start] = values[b, start] - p[0]
                        off[b, start] = g[0]
                        off[b, end[0]] = zero
