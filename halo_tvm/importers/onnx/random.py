"""Random numbers. With a seed of its own a node draws the same numbers in every call, else it draws by the state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..meaning import random
from ..meaning.sizes import Dim
from ._node import Node
from ._registry import converter
from ._values import element_dtype


@converter("RandomNormal", "RandomUniform")
def of_shape(node: Node) -> relax.Expr:
    return _numbers(node, list(node.attr("shape")), _dtype(node, "float32"))


@converter("RandomNormalLike", "RandomUniformLike")
def like(node: Node) -> relax.Expr:
    return _numbers(node, node.shape(0), _dtype(node, node.dtype(0)))


def _numbers(node: Node, shape: Sequence[Dim], dtype: str) -> relax.Expr:
    _refuse_in_a_loop(node)
    seed = _seed(node)
    if node.op.startswith("RandomNormal"):
        drawn, scale, start = random.normal(node, shape, dtype, seed), node.attr("scale", 1.0), node.attr("mean", 0.0)
    else:
        low, high = node.attr("low", 0.0), node.attr("high", 1.0)
        drawn, scale, start = random.uniform(node, shape, dtype, seed), high - low, low
    return random.moved(node, drawn, scale, start)


@converter("Bernoulli")
def bernoulli(node: Node) -> relax.Expr:
    _refuse_in_a_loop(node)
    return node.cast(random.bernoulli(node, node.x(0), _seed(node)), _dtype(node, node.dtype(0)))


@converter("Multinomial")
def multinomial(node: Node) -> relax.Expr:
    """Classes by their unnormalised logarithms of probability, each drawn anew."""
    _refuse_in_a_loop(node)
    node.refuse_unless(node.rank(0) == 2, f"expected an input [batch, classes], found rank {node.rank(0)}")
    chances = node.emit(relax.op.nn.softmax(node.cast(node.x(0), "float64"), -1))
    chosen = random.chosen(node, chances, int(node.attr("sample_size", 1)), True, _seed(node))
    return node.cast(chosen, _dtype(node, "int32"))


@converter("Dropout")
def dropout(node: Node) -> tuple[object, relax.Expr | None]:
    """In inference the input as it is, and a mask that keeps everything; in training mode a share of it is dropped."""
    if node.has(2) and node.scalar(2) and (not node.has(1) or node.scalar(1) != 0):
        _refuse_in_a_loop(node)
        return random.kept(node, node.x(0), float(node.scalar(1)) if node.has(1) else 0.5, _seed(node))
    mask = None
    if len(node.outputs) > 1 and node.outputs[1]:
        dtype = "bool" if node.opset >= 10 else node.dtype(0)
        mask = relax.op.full(relax.ShapeExpr(node.shape(0)), relax.const(1, dtype), dtype)
    return node.value(0), mask


def _dtype(node: Node, default: str) -> str:
    return element_dtype(node.attr("dtype")) if node.has_attr("dtype") else default


def _seed(node: Node) -> int | None:
    """The bits of the attribute, which is a float, or None where there is none."""
    if not node.has_attr("seed"):
        return None
    value = node.attr("seed")
    return int(np.array(value, "float32").view("int32")) if isinstance(value, float) else int(value)


def _refuse_in_a_loop(node: Node) -> None:
    """A body is one function, run again and again: it would draw the same numbers in every step."""
    node.refuse_unless(
        not node.graph.only_types, "it draws numbers inside of a loop: draw those of all steps in front of it"
    )
