"""Layer normalisation over the last axis, with an optional residual added in front.

Shapes
    x [..., d]   weight [d]   bias [d]   residual [..., d] (optional)   ->   y [..., d]
Computation
    s = x + residual
    y = (s - mean(s, axis=-1)) / sqrt(var(s, axis=-1) + eps) * weight + bias
Lifts
    nn.layer_norm(x, weight, bias, axes=[-1])                       =>   halo.layer_norm(x, weight, bias)
    c = subtract(x, mean(x)); r = sqrt(add(mean(power), eps)) with power = power(c, 2) or multiply(c, c)
    add(multiply(divide(c, r), weight), bias)                       =>   halo.layer_norm(x, weight, bias)
    add(multiply(multiply(c, rsqrt(add(mean(power), eps))), weight), bias)   =>   the same
    A mean or normalised value that something else reads, as a second norm of one tensor does, is computed for that
    again: the norm passes over its row anyhow.
    An addition in front is left alone: it costs nothing in the epilogue of the linear before, whose
    result the residual stream needs anyway.
Rejects
    normalisation over other axes than the last; weight or bias that is no vector of the last
    dimension; weight or bias not float32; an exponent other than 2; eps that is no scalar
    constant
Numerics
    two passes in float32: the mean first, then the mean of the squared differences
References
    arXiv:1607.06450
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax, te, tirx
from tvm.relax.dpl import DFPattern, is_const, is_op, wildcard

from ..errors import Rejected
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


class LayerNorm(Operator):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""

    name = "layer_norm"

    @staticmethod
    def infer_type(call: relax.Call) -> relax.TensorType:
        if len(call.args) not in (3, 4):
            raise ValueError(
                f"halo.layer_norm: takes x, weight, bias and at most one residual, got {len(call.args)} arguments"
            )
        check_vectors("layer_norm", call.args[0], {"weight": call.args[1], "bias": call.args[2]})
        check_residual("layer_norm", call.args[0], call.args[3:])
        return call.args[0].ty

    @staticmethod
    def compute(x: te.Tensor, weight: te.Tensor, bias: te.Tensor, *residual: te.Tensor, eps: float) -> te.Tensor:
        dtype = x.dtype
        x = with_residual(x, residual)
        depth = x.shape[-1]
        count = tirx.Cast("float32", depth)
        k, r = te.reduce_axis((0, depth), "k"), te.reduce_axis((0, depth), "r")
        total = te.compute(x.shape[:-1], lambda *i: te.sum(f32(x[(*i, k)]), axis=k), name="total")
        mean = te.compute(x.shape[:-1], lambda *i: total[i] / count, name="mean")

        def squared_difference(*i):
            difference = f32(x[(*i, r)]) - mean[i]
            return te.sum(difference * difference, axis=r)

        squares = te.compute(x.shape[:-1], squared_difference, name="squares")
        scale = scale_of(squares, count, eps)
        return te.compute(
            x.shape,
            lambda *i: ((f32(x[i]) - mean[i[:-1]]) * scale[i[:-1]] * weight[i[-1]] + bias[i[-1]]).astype(dtype),
            name="layer_norm",
            attrs={"halo.op": "layer_norm"},
        )

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *residual: np.ndarray, eps: float) -> np.ndarray:
        x = x + residual[0] if residual else x
        difference = x - x.mean(-1, keepdims=True)
        return difference / np.sqrt((difference**2).mean(-1, keepdims=True) + eps) * weight + bias

    @staticmethod
    def flops(shapes: list[tuple[int, ...]], eps: float) -> int:
        return (8 + len(shapes) - 3) * int(np.prod(shapes[0]))

    @staticmethod
    def cases() -> Sequence[Mapping[str, object]]:
        return (
            {"args": [(1, 64), (64,), (64,)], "attrs": {"eps": 1e-5}},
            {"args": [(2, 7, 33), (33,), (33,)], "attrs": {"eps": 1e-12}},
            {"args": [(5, 100), (100,), (100,), (5, 100)], "attrs": {"eps": 1e-5}},
        )

    @staticmethod
    def lifts() -> Sequence[Lift]:
        return (*_whole(), *_decomposed())


def _whole() -> tuple[Lift, ...]:
    x, weight, bias = wildcard(), wildcard(), wildcard()
    pattern = is_op("relax.nn.layer_norm")(x, weight, bias)

    def build(m: Mapping[DFPattern, relax.Expr]) -> relax.Expr:
        attrs = m[pattern].attrs
        require_last("normalisation", attrs.axes, m[x].ty.ndim)
        if not (attrs.center and attrs.scale):
            raise Rejected(f"both center and scale are needed, got center={attrs.center}, scale={attrs.scale}")
        return _checked(m[x], m[weight], m[bias], float(attrs.epsilon))

    return (Lift("layer_norm.nn", pattern, build, benefit=5),)


def _decomposed() -> tuple[Lift, ...]:
    """(c / sqrt(v + eps)) and (c * rsqrt(v + eps)), each times weight plus bias."""
    x, weight, bias, eps, exponent = wildcard(), wildcard(), wildcard(), is_const(), is_const()
    mean = mean_of(x)
    centred = is_op("relax.subtract")(x, mean)
    variance = mean_of(square_of(centred, exponent))

    def build(m: Mapping[DFPattern, relax.Expr]) -> relax.Expr:
        require_last_axis(m[mean], m[x].ty.ndim)
        require_last_axis(m[variance], m[x].ty.ndim)
        require_square(m, exponent)
        return _checked(m[x], m[weight], m[bias], required_number(m[eps], "eps"))

    return tuple(
        Lift(f"layer_norm.{name}", is_op("relax.add")(is_op("relax.multiply")(normal, weight), bias), build, benefit=9)
        for name, normal in by_root(centred, variance, eps).items()
    )


def _checked(x: relax.Expr, weight: relax.Expr, bias: relax.Expr, eps: float) -> relax.Expr:
    require(why_no_vector(x, "weight", weight))
    require(why_no_vector(x, "bias", bias))
    return LayerNorm.call(x, weight, bias, eps=eps)
