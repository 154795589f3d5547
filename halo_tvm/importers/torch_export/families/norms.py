"""Normalisations and softmax."""

from __future__ import annotations

import numpy as np
from tvm import relax, tirx

from ....relay_ops import OPERATORS
from ....relay_ops._norm import why_no_vector
from ...meaning.builder import Refused
from .._call import Call, constant
from .._registry import converter

_EPS = {
    "float32": 1.1920928955078125e-07,
    "float64": 2.220446049250313e-16,
    "float16": 0.0009765625,
    "bfloat16": 0.0078125,
}


@converter("layer_norm.default")
def layer_norm(c: Call) -> relax.Expr:
    x, axes = c.tensor("input"), len(c["normalized_shape"])
    weight, bias = (c.tensor(n) if c.has(n) else None for n in ("weight", "bias"))
    if axes == 1:
        width = c.shape[-1]
        weight = weight if weight is not None else _filled(c, 1.0, width, "float32")
        bias = bias if bias is not None else _filled(c, 0.0, width, "float32")
        if not any(why_no_vector(x, n, v) for n, v in (("weight", weight), ("bias", bias))):
            return c.emit(OPERATORS["layer_norm"].call(x, weight, bias, eps=float(c["eps"])))
    last = list(range(c.rank("input") - axes, c.rank("input")))
    centred = c.emit(relax.op.subtract(x, c.emit(relax.op.mean(x, last, keepdims=True))))
    return _scaled(c, centred, last, weight, bias)


def _scaled(
    c: Call, centred: relax.Expr, axes: list[int], weight: relax.Expr | None, bias: relax.Expr | None
) -> relax.Expr:
    """centred / sqrt(mean(centred^2) + eps) * weight + bias."""
    square = c.emit(relax.op.mean(c.emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    scale = c.emit(relax.op.rsqrt(c.emit(relax.op.add(square, constant(float(c["eps"]), c.dtype)))))
    y = c.emit(relax.op.multiply(centred, scale))
    y = y if weight is None else c.emit(relax.op.multiply(y, c.cast(weight, c.dtype)))
    return y if bias is None else c.emit(relax.op.add(y, c.cast(bias, c.dtype)))


def _filled(c: Call, value: float, size: tirx.PrimExpr, dtype: str) -> relax.Expr:
    if not isinstance(size, tirx.IntImm):
        raise Refused("a dynamic last dimension and no weight")
    return constant(np.full(int(size), value), dtype)


@converter("rms_norm.default")
def rms_norm(c: Call) -> relax.Expr:
    x, axes = c.tensor("input"), len(c["normalized_shape"])
    eps = float(c["eps"]) if c["eps"] is not None else _EPS[c.dtype]
    weight = c.tensor("weight") if c.has("weight") else None
    if axes == 1:
        vector = weight if weight is not None else _filled(c, 1.0, c.shape[-1], "float32")
        if not why_no_vector(x, "weight", vector):
            return c.emit(OPERATORS["rms_norm"].call(x, vector, eps=eps))
    last = list(range(c.rank("input") - axes, c.rank("input")))
    square = c.emit(relax.op.mean(c.emit(relax.op.multiply(x, x)), last, keepdims=True))
    scale = c.emit(relax.op.rsqrt(c.emit(relax.op.add(square, constant(eps, c.dtype)))))
    y = c.emit(relax.op.multiply(x, scale))
    return y if weight is None else c.emit(relax.op.multiply(y, weight))


@converter("group_norm.default")
def group_norm(c: Call) -> relax.Expr:
    x, groups, rank = c.tensor("input"), int(c["num_groups"]), c.rank("input")
    n, channels, *rest = c.shape
    split = c.reshape(x, [n, tirx.IntImm("int64", groups), tirx.floordiv(channels, groups), *rest])
    axes = list(range(2, rank + 1))
    centred = c.emit(relax.op.subtract(split, c.emit(relax.op.mean(split, axes, keepdims=True))))
    y = c.reshape(_scaled(c, centred, axes, None, None), c.shape)
    return per_channel(
        c, y, c.tensor("weight") if c.has("weight") else None, c.tensor("bias") if c.has("bias") else None
    )


def per_channel(c: Call, x: relax.Expr, weight: relax.Expr | None, bias: relax.Expr | None) -> relax.Expr:
    """x * weight + bias, both over axis 1."""
    one = tirx.IntImm("int64", 1)

    def spread(v: relax.Expr) -> relax.Expr:
        return c.reshape(v, [v.ty.shape.values[0], *([one] * (x.ty.ndim - 2))])

    x = x if weight is None else c.emit(relax.op.multiply(x, spread(weight)))
    return x if bias is None else c.emit(relax.op.add(x, spread(bias)))


@converter("instance_norm.default")
def instance_norm(c: Call) -> relax.Expr:
    if not c["use_input_stats"]:
        raise Refused("use_input_stats=False")
    x, axes = c.tensor("input"), list(range(2, c.rank("input")))
    centred = c.emit(relax.op.subtract(x, c.emit(relax.op.mean(x, axes, keepdims=True))))
    y = _scaled(c, centred, axes, None, None)
    return per_channel(
        c, y, c.tensor("weight") if c.has("weight") else None, c.tensor("bias") if c.has("bias") else None
    )


@converter("_native_batch_norm_legit_no_training.default", "batch_norm.default")
def batch_norm(c: Call) -> object:
    """With running statistics it is one multiplication and one addition per channel."""
    if c.nodes.get("training"):
        raise Refused("training=True")
    mean, variance = c.tensor("running_mean"), c.tensor("running_var")
    dtype = str(mean.ty.dtype)
    scale = c.emit(relax.op.rsqrt(c.emit(relax.op.add(variance, constant(float(c["eps"]), dtype)))))
    if c.has("weight"):
        scale = c.emit(relax.op.multiply(c.tensor("weight"), scale))
    shift = c.emit(relax.op.negative(c.emit(relax.op.multiply(mean, scale))))
    if c.has("bias"):
        shift = c.emit(relax.op.add(c.tensor("bias"), shift))
    y = per_channel(c, c.tensor("input"), c.cast(scale, c.dtype), c.cast(shift, c.dtype))
    if "native" not in str(c.node.target):
        return y
    return y, _unused(c, 1), _unused(c, 2)


def _unused(c: Call, index: int) -> relax.Expr:
    """The saved statistics of training: empty in inference."""
    if any(n.args[1] == index for n in c.node.users):
        raise Refused("saved statistics that are used")
    return constant(np.zeros(0), "float32")


@converter("softmax.int", "_softmax.default", "special_softmax.int")
def softmax(c: Call) -> relax.Expr:
    x = c.tensor("self", c.dtype)
    return x if c.rank("self") == 0 else c.emit(relax.op.nn.softmax(x, int(c["dim"]) % c.rank("self")))


@converter("log_softmax.int", "_log_softmax.default")
def log_softmax(c: Call) -> relax.Expr:
    return c.emit(relax.op.nn.log_softmax(c.tensor("self", c.dtype), int(c["dim"]) % c.rank("self")))


@converter("_safe_softmax.default")
def safe_softmax(c: Call) -> relax.Expr:
    """Softmax whose rows of nothing but -inf are 0."""
    x, axis = c.tensor("self", c.dtype), int(c["dim"]) % c.rank("self")
    lowest = constant(float("-inf"), c.dtype)
    hidden = c.emit(relax.op.equal(c.emit(relax.op.max(x, [axis], keepdims=True)), lowest))
    return c.emit(relax.op.where(hidden, constant(0, c.dtype), c.emit(relax.op.nn.softmax(x, axis))))
