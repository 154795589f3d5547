"""Multiplication of two run-time matrices.

Shapes
    a [..., m, k] (or [..., k, m] with transpose_a)
    b [..., k, n] (or [..., n, k] with transpose_b)   ->   c [..., m, n]
    the leading dimensions are equal, or those of b are missing
Computation
    c = op(a) @ op(b)
Lifts
    matmul(a, b), matmul(a, permute_dims(b)) where neither operand is a parameter   =>   halo.matmul
Rejects
    operands of unequal leading dimensions; operands of rank below 2; dtypes other than float32, float16 and
    bfloat16, or an out_dtype unlike them
Numerics
    accumulates in float32
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te
from tvm.relax.dpl import is_op, wildcard

from ..errors import Rejected
from .operator import Lift, Operator, attrs_of, f32, require_float, same_shape


class Matmul(Operator):
    """Batched matrix product of two activations."""

    name = "matmul"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        a, b = call.args[0].ty, call.args[1].ty
        attrs = attrs_of(call)
        if a.ndim < 2 or b.ndim not in (2, a.ndim):
            raise ValueError(
                f"halo.matmul: expected operands of rank >= 2 and equal rank (or b of rank 2), got {a} and {b}"
            )
        m = a.shape.values[-1 if attrs.get("transpose_a") else -2]
        n = b.shape.values[-2 if attrs.get("transpose_b") else -1]
        return relax.TensorType([*a.shape.values[:-2], m, n], a.dtype)

    @staticmethod
    def compute(a: te.Tensor, b: te.Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> te.Tensor:
        m, depth = (a.shape[-1], a.shape[-2]) if transpose_a else (a.shape[-2], a.shape[-1])
        n = b.shape[-2] if transpose_b else b.shape[-1]
        k = te.reduce_axis((0, depth), "k")

        def term(*i):
            batch, row, column = i[:-2], i[-2], i[-1]
            left = a[(*batch, k, row)] if transpose_a else a[(*batch, row, k)]
            lead = batch if len(b.shape) == len(a.shape) else ()
            right = b[(*lead, column, k)] if transpose_b else b[(*lead, k, column)]
            return te.sum(f32(left) * f32(right), axis=k)

        out = te.compute([*a.shape[:-2], m, n], term, name="matmul", attrs={"halo.op": "matmul"})
        return out if a.dtype == "float32" else out.astype(a.dtype)

    @staticmethod
    def reference(a: np.ndarray, b: np.ndarray, *, transpose_a: bool = False, transpose_b: bool = False) -> np.ndarray:
        return (a.swapaxes(-1, -2) if transpose_a else a) @ (b.swapaxes(-1, -2) if transpose_b else b)

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], transpose_a: bool = False, transpose_b: bool = False) -> int:
        return 2 * int(np.prod(shapes[0])) * shapes[1][-2 if transpose_b else -1]

    @staticmethod
    def cases():
        return (
            {"args": [(5, 12), (12, 7)], "attrs": {}},
            {"args": [(2, 3, 5, 12), (2, 3, 7, 12)], "attrs": {"transpose_b": True}},
            {"args": [(2, 12, 5), (12, 7)], "attrs": {"transpose_a": True}},
        )

    @staticmethod
    def lifts():
        a, b = wildcard(), wildcard()
        plain = is_op("relax.matmul")(a, b)
        swapped_b = is_op("relax.permute_dims")(b)
        swapped = is_op("relax.matmul")(a, swapped_b)

        def check(x, y, product):
            require_float(x, y, out_dtype=product.attrs.out_dtype)
            if x.ty.ndim < 2 or y.ty.ndim not in (2, x.ty.ndim):
                raise Rejected(f"operands need rank >= 2 and equal ranks, found {x.ty} and {y.ty}")
            if y.ty.ndim > 2 and not same_shape(x.ty.shape.values[:-2], y.ty.shape.values[:-2]):
                raise Rejected(f"leading dimensions differ: {x.ty} and {y.ty}")

        def build_plain(bindings):
            check(bindings[a], bindings[b], bindings[plain])
            return Matmul.call(bindings[a], bindings[b])

        def build_swapped(bindings):
            axes = bindings[swapped_b].attrs.axes
            rank = bindings[b].ty.ndim
            order = list(range(rank))[::-1] if axes is None else [int(x) for x in axes]
            if order != [*range(rank - 2), rank - 1, rank - 2]:
                raise Rejected(f"the transpose must swap the last two axes, found axes {order}")
            check(bindings[a], bindings[b], bindings[swapped])
            return Matmul.call(bindings[a], bindings[b], transpose_b=True)

        return (
            Lift("matmul.transposed", swapped, build_swapped, benefit=2),
            Lift("matmul.plain", plain, build_plain, benefit=1),
        )
