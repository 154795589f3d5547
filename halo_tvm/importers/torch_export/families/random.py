"""Random numbers, drawn by the state of the model: see `meaning.random`."""

from __future__ import annotations

from tvm import relax

from ...meaning import random
from ...meaning.builder import expr_dtype
from .._call import Call, Number, fixed
from .._registry import converter

for _names, _convert in {
    "rand.default rand_like.default": lambda c: random.uniform(c, c.shape, c.dtype),
    "randn.default randn_like.default": lambda c: random.normal(c, c.shape, c.dtype),
    "dropout.default": lambda c: random.kept(c, c["input"], float(c["p"]))[0] if c["train"] else c["input"],
}.items():
    converter(*_names.split())(_convert)


@converter("uniform.default")
def uniform(c: Call) -> relax.Expr:
    low, high = float(c["from"]), float(c["to"])
    return random.moved(c, random.uniform(c, c.shape, c.dtype), high - low, low)


@converter(
    "normal_functional.default",
    "normal.float_float",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.Tensor_Tensor",
)
def normal(c: Call) -> relax.Expr:
    mean, deviation, drawn = c["mean"], c["std"], random.normal(c, c.shape, c.dtype)
    if isinstance(deviation, relax.Expr):
        drawn, deviation = c.emit(relax.op.multiply(drawn, c.tensor("std", c.dtype))), 1.0
    if isinstance(mean, relax.Expr):
        moved = random.moved(c, drawn, float(deviation), 0.0)
        return c.emit(relax.op.add(moved, c.tensor("mean", c.dtype)))
    return random.moved(c, drawn, float(deviation), float(mean))


@converter("exponential.default")
def exponential(c: Call) -> relax.Expr:
    return random.moved(c, random.exponential(c, c.shape, c.dtype), 1 / float(c["lambd"]), 0.0)


@converter("bernoulli.p", "bernoulli.Tensor", "bernoulli.default")
def bernoulli(c: Call) -> relax.Expr:
    p = c["p"] if "p" in c.nodes else c["self"]
    p = c.as_tensor(p, "float32" if isinstance(p, Number) else expr_dtype(p))
    return c.cast(random.bernoulli(c, c.broadcast(p, c.shape)), c.dtype)


@converter("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def randint(c: Call) -> relax.Expr:
    low = fixed(c["low"], "a bound") if c.has("low") else 0
    return random.integers(c, low, fixed(c["high"], "a bound"), c.shape, c.dtype)


@converter("randperm.default")
def randperm(c: Call) -> relax.Expr:
    """The order of numbers that are all different but once in 2**53 pairs."""
    return c.emit(relax.op.argsort(random.uniform(c, c.shape, "float64"), dtype=c.dtype))


@converter("multinomial.default")
def multinomial(c: Call) -> relax.Expr:
    return random.chosen(c, c["self"], fixed(c["num_samples"], "a number of samples"), bool(c["replacement"]))


@converter("native_dropout.default")
def native_dropout(c: Call) -> tuple[relax.Expr, relax.Expr]:
    if c.has("train") and not c["train"]:
        return c["input"], c.emit(relax.op.full(relax.ShapeExpr(c.shape), relax.const(True), "bool"))
    return random.kept(c, c["input"], float(c["p"]))
