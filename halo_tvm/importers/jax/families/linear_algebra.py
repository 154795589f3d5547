"""jax.numpy.linalg: factorisations and systems of equations, of real matrices."""

from __future__ import annotations

from tvm import relax

from ...meaning import linear_algebra
from ...meaning.builder import expr_dtype, expr_shape
from ...meaning.linear_algebra import turned
from .._primitive import Primitive
from .._registry import converter
from .._values import Value
from .calls import entered


def _matrix(c: Primitive, index: int = 0) -> relax.Expr:
    x = c.x(index)
    c.refuse_unless(expr_dtype(x) in ("float32", "float64"), f"matrices of {expr_dtype(x)}")
    return x


for _name, _convert in {
    "cholesky": lambda c: linear_algebra.cholesky(c, _matrix(c)),
    "lu": lambda c: list(linear_algebra.lu(c, _matrix(c))),  # (LU, pivots, permutation), counted from 0
    "lu_pivots_to_permutation": lambda c: linear_algebra.rows_of_pivots(c, c.x(), c.shape[-1], 0),
    "geqrf": lambda c: list(linear_algebra.reflections(c, _matrix(c))),
}.items():
    converter(_name)(_convert)


@converter("triangular_solve")
def triangular_solve(c: Primitive) -> Value:
    """a x = y, or x a = y, which is a^T x^T = y^T."""
    p, left = c.params, bool(c.params["left_side"])
    y = _matrix(c, 1)
    x = linear_algebra.triangular_solved(
        c,
        _matrix(c),
        y if left else turned(c, y),
        lower=bool(p["lower"]),
        transposed=bool(p["transpose_a"]) == left,
        unit=bool(p["unit_diagonal"]),
    )
    return x if left else turned(c, x)


@converter("custom_linear_solve")
def custom_linear_solve(c: Primitive) -> list[Value | None]:
    """The function that solves; what it does backwards does not matter here."""
    lengths, jaxprs = c.params["const_lengths"], c.params["jaxprs"]
    before = int(lengths.matvec) + int(lengths.vecmat)
    given = c.values[before : before + int(lengths.solve)]
    behind = before + int(lengths.solve) + int(lengths.transpose_solve)
    return entered(c, jaxprs.solve, [*given, *c.values[behind:]])


@converter("householder_product")
def householder_product(c: Primitive) -> Value:
    vectors = _matrix(c)
    return linear_algebra.product_of_reflections(c, vectors, c.x(1), expr_shape(vectors)[-1])


@converter("qr")
def qr(c: Primitive) -> list[Value]:
    c.refuse_unless(not c.params.get("pivoting"), "a QR factorisation that moves columns")
    return list(linear_algebra.qr(c, _matrix(c), complete=bool(c.params["full_matrices"])))


@converter("eigh")
def eigenvectors(c: Primitive) -> list[Value]:
    """(vectors, values)."""
    c.refuse_unless(c.params.get("subset_by_index") is None, "some of the eigenvalues")
    x = linear_algebra.of_half(c, _matrix(c), upper=not c.params["lower"])
    values, vectors = linear_algebra.eigenvectors(c, x)
    return [vectors, values]


@converter("svd")
def singular_values(c: Primitive) -> list[Value]:
    """(values, U, V^T), or the values alone."""
    c.refuse_unless(c.params.get("subset_by_index") is None, "some of the singular values")
    x = _matrix(c)
    left, values, right = linear_algebra.singular_values(c, x)
    if not c.params["compute_uv"]:
        return [values]
    rows, columns = expr_shape(x)[-2:]
    square = c.sizes.is_equal(rows, columns)
    c.refuse_unless(not c.params["full_matrices"] or square, "full matrices of a matrix that is not square")
    return [values, left, right]
