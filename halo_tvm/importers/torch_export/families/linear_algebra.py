"""torch.linalg: factorisations, inverses, systems of equations.

torch raises for a matrix that has no inverse or is not positive definite; here infinities and NaN come out.
"""

from __future__ import annotations

from tvm import relax

from ...meaning import linear_algebra
from ...meaning.builder import expr_dtype, expr_shape
from ...meaning.linear_algebra import turned
from .._call import Call, constant
from .._registry import converter


def _info(c: Call, x: relax.Expr) -> relax.Expr:
    """What LAPACK says of each matrix: 0, in order."""
    return c.emit(relax.op.zeros(expr_shape(x)[:-2], "int32"))


def _one_based(c: Call, pivots: relax.Expr) -> relax.Expr:
    return c.emit(relax.op.add(pivots, relax.const(1, "int32")))


@converter("linalg_inv_ex.default")
def inverse(c: Call) -> tuple[relax.Expr, relax.Expr]:
    x = c.tensor("A")
    return linear_algebra.inverse(c, x), _info(c, x)


@converter("inverse.default")
def plain_inverse(c: Call) -> relax.Expr:
    return linear_algebra.inverse(c, c.tensor("self"))


@converter("_linalg_det.default")
def determinant(c: Call) -> tuple[relax.Expr, ...]:
    """(result, LU, pivots)."""
    x = c.tensor("A")
    packed, pivots, _ = linear_algebra.lu(c, x)
    return linear_algebra.determinant(c, packed, pivots)[0], packed, _one_based(c, pivots)


@converter("_linalg_slogdet.default")
def sign_and_log(c: Call) -> tuple[relax.Expr, ...]:
    """(sign, logarithm, LU, pivots)."""
    x = c.tensor("A")
    packed, pivots, _ = linear_algebra.lu(c, x)
    _, sign, size = linear_algebra.determinant(c, packed, pivots)
    return sign, size, packed, _one_based(c, pivots)


@converter("_linalg_solve_ex.default")
def solve(c: Call) -> tuple[relax.Expr, ...]:
    """(result, LU, pivots, info); B is a vector for each matrix, or a matrix."""
    a, y = c.tensor("A"), c.tensor("B")
    rank = len(expr_shape(a))
    is_vector = len(expr_shape(y)) == rank - 1
    y = c.reshape(y, [*expr_shape(y), 1]) if is_vector else y
    y = y if c["left"] else turned(c, y)
    packed, pivots, rows = linear_algebra.lu(c, a)
    y = c.broadcast(y, [*expr_shape(a)[:-2], *expr_shape(y)[-2:]])
    x = linear_algebra.solved(c, packed, rows, y, transposed=not c["left"])
    x = x if c["left"] else turned(c, x)
    x = c.reshape(x, expr_shape(x)[:-1]) if is_vector else x
    return x, packed, _one_based(c, pivots), _info(c, a)


@converter("linalg_cholesky_ex.default", "cholesky.default")
def cholesky(c: Call) -> object:
    only = "ex" not in str(c.node.target)
    x = c.tensor("self")
    lower = linear_algebra.cholesky(c, turned(c, x) if c["upper"] else x)
    found = turned(c, lower) if c["upper"] else lower
    return found if only else (found, _info(c, x))


@converter("cholesky_solve.default")
def cholesky_solve(c: Call) -> relax.Expr:
    factor, upper = c.tensor("input2"), bool(c["upper"])
    y = c.broadcast(c.tensor("self"), [*expr_shape(factor)[:-2], *c.shape[-2:]])
    y = linear_algebra.triangular_solved(c, factor, y, lower=not upper, transposed=upper)
    return linear_algebra.triangular_solved(c, factor, y, lower=not upper, transposed=not upper)


@converter("cholesky_inverse.default")
def cholesky_inverse(c: Call) -> relax.Expr:
    factor, upper = c.tensor("self"), bool(c["upper"])
    *lead, n, _ = expr_shape(factor)
    unit = c.broadcast(c.emit(relax.op.eye(n, n, 0, dtype=expr_dtype(factor))), [*lead, n, n])
    y = linear_algebra.triangular_solved(c, factor, unit, lower=not upper, transposed=upper)
    return linear_algebra.triangular_solved(c, factor, y, lower=not upper, transposed=not upper)


@converter("linalg_solve_triangular.default")
def solve_triangular(c: Call) -> relax.Expr:
    """A X = B, or X A = B, which is A^T X^T = B^T."""
    a, y, upper, left = c.tensor("self"), c.tensor("B"), bool(c["upper"]), bool(c["left"])
    a = c.broadcast(a, [*c.shape[:-2], *expr_shape(a)[-2:]])
    y = c.broadcast(y, c.shape)
    y = y if left else turned(c, y)
    x = linear_algebra.triangular_solved(c, a, y, lower=not upper, transposed=not left, unit=bool(c["unitriangular"]))
    return x if left else turned(c, x)


@converter("linalg_lu_factor_ex.default")
def lu_factors(c: Call) -> tuple[relax.Expr, ...]:
    """(LU, pivots, info)."""
    c.refuse_unless(bool(c["pivot"]), "a factorisation without pivots")
    x = c.tensor("A")
    packed, pivots, _ = linear_algebra.lu(c, x)
    return packed, _one_based(c, pivots), _info(c, x)


@converter("linalg_lu_solve.default")
def lu_solve(c: Call) -> relax.Expr:
    """A X = B, or X A = B, which is A^T X^T = B^T; A^T X = B with `adjoint`."""
    packed, left = c.tensor("LU"), bool(c["left"])
    packed = c.broadcast(packed, [*c.shape[:-2], *expr_shape(packed)[-2:]])
    rows = linear_algebra.rows_of_pivots(c, c.tensor("pivots"), expr_shape(packed)[-1], 1)
    rows = c.broadcast(rows, [*c.shape[:-2], expr_shape(packed)[-1]])
    y = c.broadcast(c.tensor("B"), c.shape)
    y = y if left else turned(c, y)
    x = linear_algebra.solved(c, packed, rows, y, transposed=bool(c["adjoint"]) == left)
    return x if left else turned(c, x)


@converter("triangular_solve.default")
def old_triangular_solve(c: Call) -> tuple[relax.Expr, relax.Expr]:
    """(X of A X = self, or A^T X = self; A)."""
    a, y, backwards, upper = c.tensor("A"), c.tensor("self"), bool(c["transpose"]), bool(c["upper"])
    y = c.broadcast(y, [*expr_shape(a)[:-2], *expr_shape(y)[-2:]])
    x = linear_algebra.triangular_solved(c, a, y, lower=not upper, transposed=backwards, unit=bool(c["unitriangular"]))
    return x, a


@converter("linalg_lu.default")
def lu(c: Call) -> tuple[relax.Expr, ...]:
    """(P, L, U)."""
    c.refuse_unless(bool(c["pivot"]), "a factorisation without pivots")
    x = c.tensor("A")
    packed, _, rows = linear_algebra.lu(c, x)
    return (linear_algebra.permutation(c, rows, expr_dtype(x)), *linear_algebra.lower_and_upper(c, packed))


@converter("linalg_matrix_exp.default")
def exponential(c: Call) -> relax.Expr:
    return linear_algebra.exponential(c, c.tensor("self"))


@converter("linalg_pinv.atol_rtol_tensor")
def pseudo_inverse(c: Call) -> relax.Expr:
    x = c.tensor("self")
    x = linear_algebra.of_half(c, x, upper=False) if c["hermitian"] else x
    limits = [c.tensor(name) if c.has(name) else constant(0.0, expr_dtype(x)) for name in ("atol", "rtol")]
    return linear_algebra.pseudo_inverse(c, x, *limits)


@converter("linalg_qr.default")
def qr(c: Call) -> tuple[relax.Expr, relax.Expr]:
    mode = str(c["mode"])
    q, r = linear_algebra.qr(c, c.tensor("A"), complete=mode == "complete")
    return (c.emit(relax.op.zeros([0], expr_dtype(r))), r) if mode == "r" else (q, r)


@converter("linalg_householder_product.default")
def householder_product(c: Call) -> relax.Expr:
    vectors = c.tensor("input")
    return linear_algebra.product_of_reflections(c, vectors, c.tensor("tau"), expr_shape(vectors)[-1])


@converter("_linalg_eigh.default")
def eigenvectors(c: Call) -> tuple[relax.Expr, relax.Expr]:
    """(values, vectors); LAPACK reads one half of the matrix."""
    values, vectors = linear_algebra.eigenvectors(c, linear_algebra.of_half(c, c.tensor("A"), upper=c["UPLO"] == "U"))
    return values, vectors


@converter("_linalg_svd.default")
def singular_values(c: Call) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """(U, values, V^T)."""
    x = c.tensor("A")
    rows, columns = expr_shape(x)[-2:]
    square = c.sizes.is_equal(rows, columns)
    c.refuse_unless(
        not (c["full_matrices"] and c["compute_uv"]) or square, "full matrices of a matrix that is not square"
    )
    return linear_algebra.singular_values(c, x)
