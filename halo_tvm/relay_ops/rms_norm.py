"""RMS normalisation over the last axis, with an optional residual added in front.

Shapes
    x [..., d]   weight [d]   residual [..., d] (optional)   ->   y [..., d]
Computation
    s = x + residual
    y = s / sqrt(mean(s^2, axis=-1) + eps) * weight
Lifts
    nn.rms_norm(x, weight, axes=[-1])   =>   halo.rms_norm(x, weight)
    with power = power(x, 2) or multiply(x, x):
    multiply(divide(x, sqrt(add(mean(power), eps))), weight)       =>   halo.rms_norm(x, weight)
    multiply(multiply(x, rsqrt(add(mean(power), eps))), weight)    =>   the same
    An addition in front, and parts that something else reads, as for halo.layer_norm.
Rejects
    normalisation over other axes than the last; weight that is no vector of the last dimension;
    weight not float32; an exponent other than 2; eps that is no scalar constant
Numerics
    accumulates in float32
References
    arXiv:1910.07467
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax, te, tirx
from tvm.relax.dpl import DFPattern, is_const, is_op, wildcard

from .operator import Lift, Operator, f32, required_number
from .parts.norm import (
    by_root,
    check_residual,
    check_vectors,
    mean_of,
    require,
    require_last,
    require_last_axis,
    require_square,
    scale_of,
    square_of,
    why_no_vector,
    with_residual,
)


class RMSNorm(Operator):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""

    name = "rms_norm"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        if len(call.args) not in (2, 3):
            raise ValueError(f"halo.rms_norm: takes x, weight and at most one residual, got {len(call.args)} arguments")
        check_vectors("rms_norm", call.args[0], {"weight": call.args[1]})
        check_residual("rms_norm", call.args[0], call.args[2:])
        return call.args[0].ty

    @staticmethod
    def compute(x: te.Tensor, weight: te.Tensor, *residual: te.Tensor, eps: float) -> te.Tensor:
        dtype = x.dtype
        x = with_residual(x, residual)
        depth = x.shape[-1]
        count = tirx.Cast("float32", depth)
        k = te.reduce_axis((0, depth), "k")
        squares = te.compute(x.shape[:-1], lambda *i: te.sum(f32(x[(*i, k)]) * f32(x[(*i, k)]), axis=k), name="squares")
        scale = scale_of(squares, count, eps)
        return te.compute(
            x.shape,
            lambda *i: (f32(x[i]) * scale[i[:-1]] * weight[i[-1]]).astype(dtype),
            name="rms_norm",
            attrs={"halo.op": "rms_norm"},
        )

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray, *residual: np.ndarray, eps: float) -> np.ndarray:
        x = x + residual[0] if residual else x
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], eps: float) -> int:
        return (4 + len(shapes) - 2) * int(np.prod(shapes[0]))

    @staticmethod
    def cases() -> Sequence[Mapping[str, object]]:
        return (
            {"args": [(1, 64), (64,)], "attrs": {"eps": 1e-5}},
            {"args": [(2, 7, 33), (33,)], "attrs": {"eps": 1e-6}},
            {"args": [(5, 100), (100,), (5, 100)], "attrs": {"eps": 1e-5}},
        )

    @staticmethod
    def lifts() -> Sequence[Lift]:
        return (_whole(), *_decomposed())


def _whole() -> Lift:
    x, weight = wildcard(), wildcard()
    pattern = is_op("relax.nn.rms_norm")(x, weight)

    def build(m: Mapping[DFPattern, relax.Expr]) -> relax.Expr:
        require_last("normalisation", m[pattern].attrs.axes, m[x].ty.ndim)
        return _checked(m[x], m[weight], float(m[pattern].attrs.epsilon))

    return Lift("rms_norm.nn", pattern, build, benefit=5)


def _decomposed() -> tuple[Lift, ...]:
    """x / sqrt(mean + eps) and x * rsqrt(mean + eps), each times weight on either side."""
    x, weight, eps, exponent = wildcard(), wildcard(), is_const(), is_const()
    mean = mean_of(square_of(x, exponent))

    def build(m: Mapping[DFPattern, relax.Expr]) -> relax.Expr:
        require_last_axis(m[mean], m[x].ty.ndim)
        require_square(m, exponent)
        return _checked(m[x], m[weight], required_number(m[eps], "eps"))

    return tuple(
        Lift(f"rms_norm.{name}", is_op("relax.multiply")(normal, weight), build, benefit=7)
        for name, normal in by_root(x, mean, eps).items()
    )


def _checked(x: relax.Expr, weight: relax.Expr, eps: float) -> relax.Expr:
    require(why_no_vector(x, "weight", weight))
    return RMSNorm.call(x, weight, eps=eps)
