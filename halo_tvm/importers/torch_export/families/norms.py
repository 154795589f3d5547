"""Normalisations and softmax."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from tvm import relax

from ...meaning.channel_norms import batch_norm, batch_statistics, group_norm, instance_norm
from ...meaning.norms import layer_norm, rms_norm
from .._call import Call, constant
from .._registry import converter

# What torch adds to the mean square where nothing is given: the smallest step from 1 in this type.
_EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@functools.cache
def _usual_eps(dtype: str) -> float:
    """Of 16-bit types that of float32 or their own, as this release of torch has it: a small number says which."""
    if dtype not in ("float16", "bfloat16"):
        return _EPS[dtype]
    small = torch.full((1,), 1e-3, dtype=getattr(torch, dtype))
    return _EPS["float32" if float(torch.rms_norm(small, (1,))) > 0.5 else dtype]


def _given(c: Call, *names: str) -> list[relax.Expr | None]:
    return [c.tensor(name) if c.has(name) else None for name in names]


@converter("layer_norm.default")
def layer(c: Call) -> relax.Expr:
    return layer_norm(c, c.tensor("input"), _first_axis(c), *_given(c, "weight", "bias"), float(c["eps"]))


@converter("native_layer_norm.default")
def native_layer(c: Call) -> tuple[relax.Expr, ...]:
    """As programs in core operators have it: (result, mean, 1 / deviation), of which the first is used."""
    return _alone(c, layer_norm(c, c.tensor("input"), _first_axis(c), *_given(c, "weight", "bias"), float(c["eps"])))


@converter("native_group_norm.default")
def native_group(c: Call) -> tuple[relax.Expr, ...]:
    vectors = _given(c, "weight", "bias")
    return _alone(c, group_norm(c, c.tensor("input"), int(c["group"]), *vectors, float(c["eps"])))


def _first_axis(c: Call) -> int:
    return c.rank("input") - len(c["normalized_shape"])


def _alone(c: Call, out: relax.Expr) -> tuple[relax.Expr, ...]:
    used = any(user.args[1] for user in c.node.users)
    c.refuse_unless(not used, "expected inference, found a use of the statistics saved for training")
    return (out,)


@converter("rms_norm.default")
def rms(c: Call) -> relax.Expr:
    epsilon = float(c["eps"]) if c["eps"] is not None else _usual_eps(c.dtype)
    return rms_norm(c, c.tensor("input"), _first_axis(c), *_given(c, "weight"), epsilon)


@converter("group_norm.default")
def group(c: Call) -> relax.Expr:
    return group_norm(c, c.tensor("input"), int(c["num_groups"]), *_given(c, "weight", "bias"), float(c["eps"]))


@converter("instance_norm.default")
def instance(c: Call) -> relax.Expr:
    x, (weight, bias) = c.tensor("input"), _given(c, "weight", "bias")
    if c["use_input_stats"]:
        return instance_norm(c, x, weight, bias, float(c["eps"]))
    return batch_norm(c, x, weight, bias, *_given(c, "running_mean", "running_var"), float(c["eps"]))


@converter("batch_norm.default", "_native_batch_norm_legit_no_training.default", "_native_batch_norm_legit.no_stats")
def batch(c: Call) -> object:
    """By running statistics, or by those of the batch where the module keeps none."""
    x, (weight, bias, mean, variance) = c.tensor("input"), _given(c, "weight", "bias", "running_mean", "running_var")
    if c.nodes.get("training"):
        c.refuse_unless(mean is None, "expected inference, found a batch norm that moves its statistics: call .eval()")
        mean, variance = batch_statistics(c, x)
    out = batch_norm(c, x, weight, bias, mean, variance, float(c["eps"]))
    return _alone(c, out) if "native" in c.op else out


@converter("softmax.int", "_softmax.default", "special_softmax.int")
def softmax(c: Call) -> relax.Expr:
    return _along(c, relax.op.nn.softmax)


@converter("log_softmax.int", "_log_softmax.default")
def log_softmax(c: Call) -> relax.Expr:
    return _along(c, relax.op.nn.log_softmax)


def _along(c: Call, function: Callable[..., relax.Expr]) -> relax.Expr:
    """`function` along an axis, which a scalar has one element of."""
    x = c.tensor("self", c.dtype)
    if c.rank("self"):
        return c.emit(function(x, c.axis("dim")))
    return c.reshape(c.emit(function(c.reshape(x, [1]), 0)), [])


@converter("_safe_softmax.default")
def safe_softmax(c: Call) -> relax.Expr:
    """Softmax whose rows of nothing but -inf are 0."""
    x, axis = c.tensor("self", c.dtype), c.axis("dim")
    lowest = constant(float("-inf"), c.dtype)
    hidden = c.emit(relax.op.equal(c.emit(relax.op.max(x, [axis], keepdims=True)), lowest))
    return c.emit(relax.op.where(hidden, constant(0, c.dtype), c.emit(relax.op.nn.softmax(x, axis))))
