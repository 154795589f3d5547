"""The exponential of matrices: a Taylor polynomial of a part that is small, squared as often as it was halved.

N. J. Higham, The scaling and squaring method for the matrix exponential revisited, SIMAX 26(4), 2005.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, te, tirx
from tvm.script.ir_builder import tirx as T

from .factorisations import cell, each_matrix, made

_DEGREES = {
    "float32": 10,
    "float64": 18,
}  # 1 / (degree + 1)! is below a rounding, for rows of a sum of sizes of at most 1
_MOST = 1024  # halvings: the exponent of the largest float64


def exponential(x: te.Tensor) -> te.Tensor:
    """[b, n, n] -> exp(x); NaN where x is not finite."""
    batch, n, _ = x.shape
    dtype = str(x.dtype)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (x,), (out, work, small) = ins, outs
        with each_matrix(batch) as b, T.seq_scope():
            scale, total, most, again = cell(dtype), cell(dtype), cell(dtype), cell("int32")
            most[0] = tirx.const(0, dtype)
            with T.serial(0, n) as i:
                total[0] = tirx.const(0, dtype)
                with T.serial(0, n) as j:
                    total[0] = total[0] + tirx.abs(x[b, i, j])
                most[0] = tirx.max(most[0], total[0])
            scale[0], again[0] = tirx.const(1, dtype), tirx.const(0, "int32")
            with T.While(tirx.all(most[0] * scale[0] > 1, again[0] < _MOST)):
                scale[0] = scale[0] * tirx.const(0.5, dtype)
                again[0] = again[0] + 1
            with T.grid(n, n) as (i, j):
                small[b, i, j] = x[b, i, j] * scale[0]
                out[b, i, j] = _unit(i, j, dtype)
            degree = _DEGREES[dtype]
            with T.serial(0, degree) as step:  # Horner: out = 1 + small out / (degree - step)
                _product(work, small, out, b, n)
                with T.grid(n, n) as (i, j):
                    out[b, i, j] = _unit(i, j, dtype) + work[b, i, j] / (degree - step).astype(dtype)
            with T.While(again[0] > 0):
                _product(work, out, out, b, n)
                with T.grid(n, n) as (i, j):
                    out[b, i, j] = work[b, i, j]
                again[0] = again[0] - 1

    return made("matrix_exp", [x], [(x.shape, dtype)] * 3, nest)[0]


def _unit(i: ir.Expr, j: ir.Expr, dtype: str) -> ir.Expr:
    return tirx.Select(i == j, tirx.const(1, dtype), tirx.const(0, dtype))


def _product(out: Any, left: Any, right: Any, b: ir.Expr, n: ir.Expr) -> None:
    dtype = str(out[b, 0, 0].ty.dtype)
    with T.serial(0, n) as i:
        with T.serial(0, n) as j:
            out[b, i, j] = tirx.const(0, dtype)
        with T.serial(0, n) as k, T.serial(0, n) as j:
            out[b, i, j] = out[b, i, j] + left[b, i, k] * right[b, k, j]
