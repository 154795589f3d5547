"""Activations of transformers: Gelu in both forms, Swish, SwiGLU, and the fused ones of onnxruntime."""

from __future__ import annotations

from tvm import relax

from ..meaning.builder import expr_dtype
from ..meaning.pointwise import HALVES
from ._node import Node
from ._registry import converter
from ._spell import add, cast, multiply, scaled

for _name, _convert in {
    "Gelu": lambda node: _gelu(node, node.x(0), False),
    "BiasGelu": lambda node: _gelu(node, add(node, node.x(0), node.x(1)), False),
    "QuickGelu": lambda node: swish(node, node.x(0), float(node.attr("alpha", 1.702))),
}.items():
    converter(_name, domain="com.microsoft")(_convert)


@converter("FastGelu", domain="com.microsoft")
def fast_gelu(node: Node) -> relax.Expr:
    x = node.x(0)
    return _gelu(node, add(node, x, node.x(1)) if node.has(1) else x, True)


def _gelu(node: Node, x: relax.Expr, tanh: bool) -> relax.Expr:
    """In float32 where the type is narrower."""
    dtype = expr_dtype(x)
    wide = cast(node, x, "float32" if dtype in HALVES else dtype)
    return cast(node, node.emit((relax.op.nn.gelu_tanh if tanh else relax.op.nn.gelu)(wide)), dtype)


def swish(node: Node, x: relax.Expr, alpha: float) -> relax.Expr:
    """x * sigmoid(alpha * x), in float32 where the type is narrower."""
    dtype = expr_dtype(x)
    wide = cast(node, x, "float32" if dtype in HALVES else dtype)
    if alpha == 1.0:
        return cast(node, node.emit(relax.op.nn.silu(wide)), dtype)
    return cast(node, multiply(node, wide, node.emit(relax.op.sigmoid(scaled(node, wide, alpha)))), dtype)


@converter("BiasAdd", domain="com.microsoft")
def bias_add(node: Node) -> relax.Expr:
    """X + bias + skip."""
    return add(node, add(node, node.x(0), node.x(1)), node.x(2))
