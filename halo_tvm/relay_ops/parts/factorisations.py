"""Matrices as products of triangular and orthogonal ones, and systems of equations, matrix by matrix of a batch.

Loops run along rows, which lie in memory one after the other, so that vectors do them. All are of floats of 32 or 64
bits, and of shapes [batch, rows, columns].
G. H. Golub, C. F. Van Loan, Matrix Computations, chapters 3 to 5; Householder's reflections have LAPACK's signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import ir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

Nest = Callable[[Sequence[Any], Sequence[Any]], None]
Shape = Sequence[ir.Expr | int]


def made(name: str, args: Sequence[te.Tensor], outputs: Sequence[tuple[Shape, str]], nest: Nest) -> list[te.Tensor]:
    """Tensors of `outputs` (shape, dtype) that `nest(buffers of args, buffers of outputs)` emits the statements for."""

    def built(ins: Sequence[Any], outs: Sequence[Any]) -> ir.Expr:
        with IRBuilder() as builder, T.seq_scope():
            nest([T.buffer_proxy(b) for b in ins], [T.buffer_proxy(b) for b in outs])
        return builder.get()

    shapes, types = [list(shape) for shape, _ in outputs], [dtype for _, dtype in outputs]
    found = te.extern(shapes, list(args), built, name=name, dtype=types)
    return list(found) if len(outputs) > 1 else [found]


@contextmanager
def each_matrix(batch: ir.Expr) -> Iterator[ir.Expr]:
    """A loop over the matrices of a batch, which threads take where there are several."""
    loop = T.serial if isinstance(batch, tirx.IntImm) and int(batch) == 1 else T.parallel
    with loop(0, batch) as matrix:
        yield matrix


def cell(dtype: str) -> Any:
    """One variable: a buffer whose element 0 is it."""
    return T.buffer_proxy(T.alloc_buffer((1,), dtype, scope="local"))


def down(count: ir.Expr, step: Callable[[ir.Expr], None]) -> None:
    """`step` of count - 1, .., 0."""
    with T.serial(0, count) as i:
        step(count - 1 - i)


def lu(x: te.Tensor) -> list[te.Tensor]:
    """[b, m, n] -> L below the diagonal, whose own is ones, and U: P x = L U; pivots int32 [b, k], P as int32 [b, m].

    k is the smaller of m and n. Step s exchanged the rows s and pivots[s]; row r of P x is the row P[r] of x. A column
    of zeros is left as it is.
    """
    batch, m, n = x.shape
    k, dtype = tirx.min(m, n), str(x.dtype)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (x,), (out, pivots, rows) = ins, outs
        with each_matrix(batch) as b, T.seq_scope():
            best, largest, kept, place = cell("int32"), cell(dtype), cell(dtype), cell("int32")
            with T.grid(m, n) as (i, j):
                out[b, i, j] = x[b, i, j]
            with T.serial(0, m) as i:
                rows[b, i] = i.astype("int32")
            with T.serial(0, k) as s:
                best[0], largest[0] = s.astype("int32"), tirx.abs(out[b, s, s])
                with T.serial(0, m - s - 1) as i:
                    with T.If(tirx.abs(out[b, s + 1 + i, s]) > largest[0]), T.Then():
                        best[0], largest[0] = (s + 1 + i).astype("int32"), tirx.abs(out[b, s + 1 + i, s])
                pivots[b, s] = best[0]
                with T.If(best[0] != s.astype("int32")), T.Then():
                    with T.serial(0, n) as j:
                        kept[0] = out[b, s, j]
                        out[b, s, j] = out[b, best[0], j]
                        out[b, best[0], j] = kept[0]
                    place[0] = rows[b, s]
                    rows[b, s] = rows[b, best[0]]
                    rows[b, best[0]] = place[0]
                with T.If(out[b, s, s] != 0), T.Then(), T.serial(0, m - s - 1) as i:
                    kept[0] = out[b, s + 1 + i, s] / out[b, s, s]
                    out[b, s + 1 + i, s] = kept[0]
                    with T.serial(0, n - s - 1) as j:
                        out[b, s + 1 + i, s + 1 + j] = out[b, s + 1 + i, s + 1 + j] - kept[0] * out[b, s, s + 1 + j]

    return made("lu", [x], [(x.shape, dtype), ([batch, k], "int32"), ([batch, m], "int32")], nest)


def rows_of_pivots(pivots: te.Tensor, m: ir.Expr | int, first: int) -> te.Tensor:
    """int32 [b, m]: where rows come from that were exchanged as `pivots` [b, k], counted from `first`, say."""
    batch, k = pivots.shape

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (pivots,), (rows,) = ins, outs
        with T.serial(0, batch) as b, T.seq_scope():
            other, kept = cell("int32"), cell("int32")
            with T.serial(0, m) as i:
                rows[b, i] = i.astype("int32")
            with T.serial(0, k) as s:
                other[0] = pivots[b, s] - first
                with T.If(tirx.all(other[0] >= 0, other[0].astype("int64") < m)), T.Then():
                    kept[0] = rows[b, s]
                    rows[b, s] = rows[b, other[0]]
                    rows[b, other[0]] = kept[0]

    return made("rows_of_pivots", [pivots], [([batch, m], "int32")], nest)[0]


def cholesky_of_lower(x: te.Tensor) -> te.Tensor:
    """[b, n, n], of whose lower half is read -> the lower L of x = L L^T; NaN all over it where there is none."""
    batch, n, _ = x.shape
    dtype = str(x.dtype)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (x,), (upper,) = ins, outs
        with each_matrix(batch) as b, T.seq_scope():
            kept = cell(dtype)
            with T.grid(n, n) as (i, j):
                upper[b, i, j] = tirx.if_then_else(j >= i, x[b, j, i], tirx.const(0, dtype))
            with T.serial(0, n) as s:
                kept[0] = tirx.sqrt(upper[b, s, s])
                with T.serial(0, n - s) as j:
                    upper[b, s, s + j] = upper[b, s, s + j] / kept[0]
                with T.serial(0, n - s - 1) as i:
                    kept[0] = upper[b, s, s + 1 + i]
                    with T.serial(0, n - s - 1 - i) as j:
                        at = s + 1 + i + j
                        upper[b, s + 1 + i, at] = upper[b, s + 1 + i, at] - kept[0] * upper[b, s, at]

    (upper,) = made("cholesky", [x], [(x.shape, dtype)], nest)

    def lower(b: ir.Expr, i: ir.Expr, j: ir.Expr) -> ir.Expr:
        last = upper(b, n - 1, n - 1)  # NaN as soon as any pivot is
        return tirx.Select(j > i, tirx.const(0, dtype), tirx.Select(tirx.isnan(last), last, upper(b, j, i)))

    return te.compute(x.shape, lower, name="lower")


def triangular(a: te.Tensor, y: te.Tensor, *, lower: bool, transposed: bool, unit: bool) -> te.Tensor:
    """The x of a x = y, or a^T x = y: a [b, n, n], of which one triangle is read, `unit`: with ones; y [b, n, k]."""
    batch, n, k = y.shape
    dtype = str(y.dtype)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (a, y), (x,) = ins, outs
        with each_matrix(batch) as b, T.seq_scope():
            kept = cell(dtype)
            with T.grid(n, k) as (i, j):
                x[b, i, j] = y[b, i, j]

            def step(s: ir.Expr, others: Callable[[ir.Expr], ir.Expr], count: ir.Expr) -> None:
                if not unit:
                    kept[0] = a[b, s, s]
                    with T.serial(0, k) as j:
                        x[b, s, j] = x[b, s, j] / kept[0]
                with T.serial(0, count) as i:
                    r = others(i)
                    kept[0] = a[b, s, r] if transposed else a[b, r, s]
                    with T.serial(0, k) as j:
                        x[b, r, j] = x[b, r, j] - kept[0] * x[b, s, j]

            if lower != transposed:
                with T.serial(0, n) as s:
                    step(s, lambda i: s + 1 + i, n - s - 1)
            else:
                down(n, lambda s: step(s, lambda i: i, s))

    return made("triangular_solve", [a, y], [(y.shape, dtype)], nest)[0]


def reflections(x: te.Tensor) -> list[te.Tensor]:
    """[b, m, n] -> R on and above the diagonal, Householder's vectors below, whose first element is 1; taus [b, k]."""
    batch, m, n = x.shape
    k, dtype = tirx.min(m, n), str(x.dtype)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (x,), (out, taus, sums) = ins, outs
        with each_matrix(batch) as b, T.seq_scope():
            rest, beta, factor = cell(dtype), cell(dtype), cell(dtype)
            with T.grid(m, n) as (i, j):
                out[b, i, j] = x[b, i, j]
            with T.serial(0, k) as s:
                rest[0] = tirx.const(0, dtype)
                with T.serial(0, m - s - 1) as i:
                    rest[0] = rest[0] + out[b, s + 1 + i, s] * out[b, s + 1 + i, s]
                taus[b, s] = tirx.const(0, dtype)
                with T.If(rest[0] > 0), T.Then():
                    beta[0] = tirx.sqrt(out[b, s, s] * out[b, s, s] + rest[0])
                    beta[0] = tirx.Select(out[b, s, s] >= 0, -beta[0], beta[0])
                    taus[b, s] = (beta[0] - out[b, s, s]) / beta[0]
                    factor[0] = out[b, s, s] - beta[0]
                    with T.serial(0, m - s - 1) as i:
                        out[b, s + 1 + i, s] = out[b, s + 1 + i, s] / factor[0]
                    _reflect(out, sums, (out, taus), b, s, m, s + 1, n - s - 1, factor)
                    out[b, s, s] = beta[0]

    found = made("qr", [x], [(x.shape, dtype), ([batch, k], dtype), ([batch, n], dtype)], nest)
    return found[:2]


def product_of_reflections(vectors: te.Tensor, taus: te.Tensor, columns: ir.Expr | int) -> te.Tensor:
    """[b, m, columns] of the product of the reflections of `vectors` [b, m, n] and `taus` [b, k]."""
    batch, m, _ = vectors.shape
    dtype = str(vectors.dtype)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (vectors, taus_), (out, sums) = ins, outs
        with each_matrix(batch) as b, T.seq_scope():
            factor = cell(dtype)
            with T.grid(m, columns) as (i, j):
                out[b, i, j] = tirx.Select(i == j, tirx.const(1, dtype), tirx.const(0, dtype))
            down(taus.shape[1], lambda s: _reflect(out, sums, (vectors, taus_), b, s, m, 0, columns, factor))

    return made("reflections", [vectors, taus], [([batch, m, columns], dtype), ([batch, columns], dtype)], nest)[0]


def _reflect(
    out: Any,
    sums: Any,
    reflection: tuple[Any, Any],
    b: ir.Expr,
    s: ir.Expr,
    m: ir.Expr,
    first: ir.Expr | int,
    columns: ir.Expr | int,
    factor: Any,
) -> None:
    """The rows from s on of `columns` columns of `out`, from `first` on, mirrored by the vector and tau number s."""
    vectors, taus = reflection
    with T.serial(0, columns) as j:
        sums[b, j] = out[b, s, first + j]
    with T.serial(0, m - s - 1) as i:
        factor[0] = vectors[b, s + 1 + i, s]
        with T.serial(0, columns) as j:
            sums[b, j] = sums[b, j] + factor[0] * out[b, s + 1 + i, first + j]
    with T.serial(0, columns) as j:
        sums[b, j] = sums[b, j] * taus[b, s]
        out[b, s, first + j] = out[b, s, first + j] - sums[b, j]
    with T.serial(0, m - s - 1) as i:
        factor[0] = vectors[b, s + 1 + i, s]
        with T.serial(0, columns) as j:
            out[b, s + 1 + i, first + j] = out[b, s + 1 + i, first + j] - factor[0] * sums[b, j]
