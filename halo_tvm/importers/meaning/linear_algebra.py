"""Matrices factorised, inverted, solved, of any batch: shapes [..., rows, columns], floats of 32 or 64 bits.

A matrix that has no inverse gives infinities and NaN, one that is not positive definite a Cholesky factor of NaN: no
run is refused for it. Vectors of eigenvalues and of singular values have any sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te, tirx

from ...relay_ops.parts import factorisations, matrix_exponential, rotations
from .builder import Builder, expr_dtype, expr_shape
from .pointwise import Scalar, const
from .sizes import Dim, plain

Kernel = Callable[..., te.Tensor | list[te.Tensor]]


def turned(b: Builder, x: relax.Expr) -> relax.Expr:
    """Each matrix of `x` transposed."""
    rank = len(expr_shape(x))
    return b.emit(relax.op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


def lu(b: Builder, x: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """(L below the diagonal and U, pivots int32 [..., k], rows int32 [..., m]): row i of L U is row rows[i] of x."""
    packed, pivots, rows = _each(b, factorisations.lu, [x], "lu")
    return packed, pivots, rows


def rows_of_pivots(b: Builder, pivots: relax.Expr, m: Dim, first: int) -> relax.Expr:
    """int32 [..., m]: the `rows` of `lu`, of its pivots [..., k] counted from `first`."""
    *lead, k = expr_shape(pivots)
    flat = b.emit(relax.op.reshape(b.cast(pivots, "int32"), [b.sizes.product(lead), k]))
    found = b.te(lambda p: factorisations.rows_of_pivots(p, m, first), flat, name="rows_of_pivots")
    return b.emit(relax.op.reshape(found, [*lead, m]))


def lower_and_upper(b: Builder, packed: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """L [..., m, k] with ones on its diagonal and U [..., k, n] of `lu`."""
    *_, m, n = expr_shape(packed)
    k = b.sizes.minimum(m, n)

    def lower(x: te.Tensor) -> te.Tensor:
        return _of_matrix(
            x, k, lambda i, j, v: tirx.Select(i > j, v, tirx.Select(i == j, const(1, x.dtype), _zero(x))), 1
        )

    return b.te(lower, packed, name="lower"), _upper(b, packed, k)


def permutation(b: Builder, rows: relax.Expr, dtype: str) -> relax.Expr:
    """P [..., m, m] with P L U = x, for the `rows` of `lu`."""

    def compute(rows: te.Tensor) -> te.Tensor:
        def element(*at: Scalar) -> Scalar:
            *i, r, c = at
            return (rows(*i, c).astype("int64") == r.astype("int64")).astype(dtype)

        return te.compute([*rows.shape, rows.shape[-1]], element, name="permutation")

    return b.te(compute, rows, name="permutation")


def determinant(b: Builder, packed: relax.Expr, pivots: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """(determinant, its sign, the logarithm of its size), each [...], of `lu`; of a singular matrix 0, 0, -inf."""

    def diagonal(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape[:-1], lambda *i: x(*i, i[-1]), name="diagonal")

    def turns(pivots: te.Tensor, like: te.Tensor) -> te.Tensor:
        def element(*i: Scalar) -> Scalar:
            same = pivots(*i).astype("int64") == i[-1].astype("int64")
            return tirx.Select(same, const(1, like.dtype), const(-1, like.dtype))

        return te.compute(pivots.shape, element, name="turns")

    parts = b.te(diagonal, packed, name="diagonal")
    sign = b.emit(relax.op.prod(b.te(turns, pivots, packed, name="turns"), [-1]))
    whole = b.emit(relax.op.multiply(b.emit(relax.op.prod(parts, [-1])), sign))
    signs = b.emit(relax.op.multiply(b.emit(relax.op.prod(b.emit(relax.op.sign(parts)), [-1])), sign))
    size = b.emit(relax.op.sum(b.emit(relax.op.log(b.emit(relax.op.abs(parts)))), [-1]))
    return whole, signs, size


def solved(b: Builder, packed: relax.Expr, rows: relax.Expr, y: relax.Expr, *, transposed: bool = False) -> relax.Expr:
    """The x of a x = y, or a^T x = y: `packed` and `rows` are those of `lu` of a, y [..., n, k]."""

    if not transposed:
        x = b.te(_rows_in_order, y, rows, name="moved")
        x = triangular_solved(b, packed, x, lower=True, unit=True)
        return triangular_solved(b, packed, x, lower=False)
    x = triangular_solved(b, packed, y, lower=False, transposed=True)
    x = triangular_solved(b, packed, x, lower=True, transposed=True, unit=True)
    return b.te(_rows_in_order, x, b.emit(relax.op.argsort(rows, -1, dtype="int64")), name="moved_back")


def inverse(b: Builder, x: relax.Expr) -> relax.Expr:
    packed, _, rows = lu(b, x)
    # P^T is the identity with its rows moved.
    y = triangular_solved(b, packed, turned(b, permutation(b, rows, expr_dtype(x))), lower=True, unit=True)
    return triangular_solved(b, packed, y, lower=False)


def triangular_solved(
    b: Builder, a: relax.Expr, y: relax.Expr, *, lower: bool, transposed: bool = False, unit: bool = False
) -> relax.Expr:
    """The x of a x = y, or a^T x = y, of the lower or upper triangle of a [..., n, n]; y [..., n, k]."""

    def kernel(a: te.Tensor, y: te.Tensor) -> te.Tensor:
        return factorisations.triangular(a, y, lower=lower, transposed=transposed, unit=unit)

    (found,) = _each(b, kernel, [a, y], "triangular_solve")
    return found


def cholesky(b: Builder, x: relax.Expr) -> relax.Expr:
    """The lower L of x = L L^T, of the lower half of x."""
    (found,) = _each(b, factorisations.cholesky_of_lower, [x], "cholesky")
    return found


def reflections(b: Builder, x: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """(R and Householder's vectors below it, taus [..., k]), as LAPACK's geqrf."""
    packed, taus = _each(b, factorisations.reflections, [x], "geqrf")
    return packed, taus


def product_of_reflections(b: Builder, vectors: relax.Expr, taus: relax.Expr, columns: Dim) -> relax.Expr:
    """The first `columns` columns of the orthogonal matrix of `reflections`."""

    def kernel(vectors: te.Tensor, taus: te.Tensor) -> te.Tensor:
        return factorisations.product_of_reflections(vectors, taus, columns)

    (found,) = _each(b, kernel, [vectors, taus], "householder_product", vectors=1)
    return found


def qr(b: Builder, x: relax.Expr, *, complete: bool) -> tuple[relax.Expr, relax.Expr]:
    """(Q [..., m, k], R [..., k, n]), k the smaller of m and n, or m where `complete`."""
    *_, m, n = expr_shape(x)
    k = m if complete else b.sizes.minimum(m, n)
    packed, taus = reflections(b, x)

    return product_of_reflections(b, packed, taus, k), _upper(b, packed, k)


def pseudo_inverse(b: Builder, x: relax.Expr, absolute: relax.Expr, relative: relax.Expr) -> relax.Expr:
    """[..., n, m]: singular values up to `absolute`, or `relative` of the largest one, count as 0."""
    left, values, right = singular_values(b, x)

    def inverted(values: te.Tensor, absolute: te.Tensor, relative: te.Tensor) -> te.Tensor:
        def element(*i: Scalar) -> Scalar:
            least = [t(*i[len(i) - 1 - len(t.shape) : -1]) for t in (absolute, relative)]
            limit = tirx.max(least[0].astype(values.dtype), least[1].astype(values.dtype) * values(*i[:-1], 0))
            return tirx.Select(values(*i) > limit, const(1, values.dtype) / values(*i), const(0, values.dtype))

        return te.compute(values.shape, element, name="inverted")

    factors = b.te(inverted, values, absolute, relative, name="inverted")
    wide = b.emit(relax.op.multiply(left, b.emit(relax.op.expand_dims(factors, [-2]))))
    return b.emit(relax.op.matmul(turned(b, right), turned(b, wide)))


def exponential(b: Builder, x: relax.Expr) -> relax.Expr:
    (found,) = _each(b, matrix_exponential.exponential, [x], "matrix_exp")
    return found


def of_half(b: Builder, x: relax.Expr, *, upper: bool) -> relax.Expr:
    """The symmetric matrices whose lower or upper halves are those of `x`."""

    def compute(x: te.Tensor) -> te.Tensor:
        def element(*at: Scalar) -> Scalar:
            *batch, i, j = at
            inside = i <= j if upper else i >= j
            return tirx.Select(inside, x(*at), x(*batch, j, i))

        return te.compute(x.shape, element, name="symmetric")

    return b.te(compute, x, name="symmetric")


def eigenvectors(b: Builder, x: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """(eigenvalues [..., n], ascending, their vectors as columns [..., n, n]) of symmetric matrices."""
    dtype = expr_dtype(x)
    values, rows = _each(b, rotations.eigenvectors, [b.cast(x, "float64")], "eigh")
    order = b.emit(relax.op.argsort(values, -1, descending=False, dtype="int64"))
    vectors = b.te(_rows_in_order, rows, order, name="in_order")
    values = b.emit(relax.op.gather_elements(values, order, -1))
    return b.cast(values, dtype), b.cast(turned(b, vectors), dtype)


def singular_values(b: Builder, x: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """(U [..., m, k], values [..., k], descending, V^T [..., k, n]) with x = U values V^T; k the smaller of m and n."""
    *_, m, n = expr_shape(x)
    tall = b.sizes.decided(m > n) if not (isinstance(m, int) and isinstance(n, int)) else m > n
    b.refuse_unless(tall is not None, f"expected sizes of which one is known to be the larger, found {m} x {n}")
    dtype = expr_dtype(x)
    unit = float(np.finfo(dtype).eps)
    wide = b.cast(x, "float64")
    wide = turned(b, wide) if tall else wide
    values, rows, turns = _each(b, lambda x: rotations.singular_rows(x, unit), [wide], "svd")
    order = b.emit(relax.op.argsort(values, -1, descending=True, dtype="int64"))
    long, short = (b.cast(b.te(_rows_in_order, y, order, name="in_order"), dtype) for y in (rows, turns))
    left, right = (long, short) if tall else (short, long)
    values = b.cast(b.emit(relax.op.gather_elements(values, order, -1)), dtype)
    return turned(b, left), values, right


def _upper(b: Builder, packed: relax.Expr, k: Dim) -> relax.Expr:
    """The first `k` rows on and above the diagonal."""

    def upper(x: te.Tensor) -> te.Tensor:
        return _of_matrix(x, k, lambda i, j, v: tirx.Select(i <= j, v, _zero(x)), 2)

    return b.te(upper, packed, name="upper")


def _rows_in_order(x: te.Tensor, order: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: x(*i[:-2], order(*i[:-1]), i[-1]), name="in_order")


def _of_matrix(x: te.Tensor, k: Dim, of: Callable[[Scalar, Scalar, Scalar], Scalar], short: int) -> te.Tensor:
    """of(row, column, element) where the last axis (`short` 1) or the one before it (2) has `k` elements only."""
    shape = [k if axis == len(x.shape) - short else size for axis, size in enumerate(x.shape)]
    return te.compute(shape, lambda *i: of(i[-2], i[-1], x(*i)), name="part")


def _zero(x: te.Tensor) -> Scalar:
    return const(0, str(x.dtype))


def _each(b: Builder, kernel: Kernel, xs: Sequence[relax.Expr], name: str, vectors: int = 0) -> list[relax.Expr]:
    """What `kernel` of batches of matrices gives for `xs` of any rank, the last `vectors` of which are vectors."""
    flat = []
    for place, x in enumerate(xs):
        own = 1 if place >= len(xs) - vectors else 2
        shape = expr_shape(x)
        empty = [dim for dim in map(plain, shape[-own:]) if isinstance(dim, int) and dim == 0]
        b.refuse_unless(not empty, f"expected matrices with elements, found sizes {list(shape)}")
        flat.append(b.emit(relax.op.reshape(x, [b.sizes.product(shape[:-own]), *shape[-own:]])))
    lead = expr_shape(xs[0])[:-2]
    found = b.te(kernel, *flat, name=name)
    several = isinstance(found.ty, relax.TupleType)
    parts = [b.emit(relax.TupleGetItem(found, i)) for i in range(len(found.ty.fields))] if several else [found]
    return [b.emit(relax.op.reshape(part, [*lead, *expr_shape(part)[1:]])) for part in parts]
