"""Calls of LAPACK, which jax writes for linear algebra on CPUs: what they compute, by jax's own functions.

Their flags are letters: L and R for sides, L and U for halves, N, T and C for what is transposed, U and N for diagonals
of ones, A, S and N (V and N) for how many vectors are wanted. The last result says what went wrong: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp
from jaxlib.mlir import ir

from .._operation import Operation, Value

_Call = Callable[[Operation], Sequence[Value]]


def _flag(o: Operation, name: str) -> str:
    config = ir.DictAttr(o.op.attributes["mhlo.backend_config"])
    return chr(ir.IntegerAttr(config[name]).value)


def _operands(o: Operation, count: int) -> list[Any]:
    if len(o.values) != count:
        raise o.refuse(f"{len(o.values)} operands")
    return list(o.values)


def _info(x: Any) -> Value:
    return jnp.zeros(x.shape[:-2], jnp.int32)


def _getrf(o: Operation) -> Sequence[Value]:
    (x,) = _operands(o, 1)
    packed, pivots, _ = lax.linalg.lu(x)
    return [packed, pivots + 1, _info(x)]


def _trsm(o: Operation) -> Sequence[Value]:
    a, y = _operands(o, 2)
    left, lower, unit = _flag(o, "side") == "L", _flag(o, "uplo") == "L", _flag(o, "diag") == "U"
    turned = _flag(o, "trans_x") != "N"
    return [lax.linalg.triangular_solve(a, y, left_side=left, lower=lower, transpose_a=turned, unit_diagonal=unit)]


def _potrf(o: Operation) -> Sequence[Value]:
    (x,) = _operands(o, 1)
    if _flag(o, "uplo") != "L":
        raise o.refuse("an upper factor")
    return [lax.linalg.cholesky(x, symmetrize_input=False), _info(x)]


def _geqrf(o: Operation) -> Sequence[Value]:
    (x,) = _operands(o, 1)
    packed, taus = jnp.linalg.qr(x, mode="raw")
    return [packed.mT, taus]


def _orgqr(o: Operation) -> Sequence[Value]:
    vectors, taus = _operands(o, 2)
    return [lax.linalg.householder_product(vectors, taus)]


def _gesdd(o: Operation) -> Sequence[Value]:
    """(the operand, written over; values, U, V^T)."""
    (x,) = _operands(o, 1)
    mode = _flag(o, "mode")
    if mode == "N":
        values = lax.linalg.svd(x, compute_uv=False)
        return [x, values, *(jnp.zeros(r.type.shape, x.dtype) for r in list(o.op.results)[2:4]), _info(x)]
    left, values, right = lax.linalg.svd(x, full_matrices=mode == "A")
    return [x, values, left, right, _info(x)]


def _syevd(o: Operation) -> Sequence[Value]:
    (x,) = _operands(o, 1)
    lower = _flag(o, "uplo") == "L"
    vectors, values = lax.linalg.eigh(x, lower=lower, symmetrize_input=False)
    return [vectors, values, _info(x)]


_FUNCTIONS: dict[str, _Call] = {
    "getrf": _getrf,
    "trsm": _trsm,
    "potrf": _potrf,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "gesdd": _gesdd,
    "syevd": _syevd,
}
LAPACK = {f"lapack_{kind}{name}_ffi": call for name, call in _FUNCTIONS.items() for kind in "sd"}
