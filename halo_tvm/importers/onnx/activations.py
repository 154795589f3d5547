"""Activations of transformers: Gelu in both forms, Swish, SwiGLU, and the fused ones of onnxruntime."""

from __future__ import annotations

from tvm import relax

from ..meaning.broadcast import aligned
from ..meaning.builder import expr_dtype
from ..meaning.pointwise import widened
from ._node import Node
from ._registry import converter
from ._spell import add, multiply, scaled

_MS = "com.microsoft"
for _name, _convert in {
    "BiasGelu": lambda node: _gelu(node, add(node, node.x(0), node.x(1)), False),
    "FastGelu": lambda node: _gelu(node, add(node, *node.xs()) if node.has(1) else node.x(0), True),
    "QuickGelu": lambda node: swish(node, node.x(0), float(node.attr("alpha", 1.702))),
}.items():
    converter(_name, domain=_MS)(_convert)
converter("Swish")(lambda node: swish(node, node.x(0), node.attr("alpha", 1.0)))


@converter("Gelu")
@converter("Gelu", domain=_MS)
def gelu(node: Node) -> relax.Expr:
    kind = node.attr("approximate", "none")
    node.refuse_unless(kind in ("none", "tanh"), f"expected none or tanh as approximate, found {kind}")
    return _gelu(node, node.x(0), kind == "tanh")


def _gelu(node: Node, x: relax.Expr, tanh: bool) -> relax.Expr:
    function = relax.op.nn.gelu_tanh if tanh else relax.op.nn.gelu
    return node.cast(node.emit(function(widened(node, x))), expr_dtype(x))


@converter("SwiGLU")
def swiglu(node: Node) -> relax.Expr:
    gate, up = aligned(node, node.xs())
    product = multiply(node, _swish(node, widened(node, gate), node.attr("alpha", 1.0)), widened(node, up))
    return node.cast(product, expr_dtype(gate))


def swish(node: Node, x: relax.Expr, alpha: float) -> relax.Expr:
    """x * sigmoid(alpha * x), in float32 where the type is narrower."""
    return node.cast(_swish(node, widened(node, x), alpha), expr_dtype(x))


def _swish(node: Node, x: relax.Expr, alpha: float) -> relax.Expr:
    if alpha == 1.0:
        return node.emit(relax.op.nn.silu(x))
    return multiply(node, x, node.emit(relax.op.sigmoid(scaled(node, x, alpha))))


@converter("BiasAdd", domain=_MS)
def bias_add(node: Node) -> relax.Expr:
    """X + bias + skip."""
    return add(node, add(node, node.x(0), node.x(1)), node.x(2))
