"""Random numbers. A compiled model gives the same outputs for the same inputs: only seeded constants are drawn."""

from __future__ import annotations

import numpy as np
import onnx
from tvm import relax

from ._node import Node
from ._registry import converter

_LARGEST = 1 << 26  # elements that are drawn at import


@converter("RandomNormal", "RandomUniform")
def drawn(node: Node) -> np.ndarray:
    """With a seed the numbers are part of the model, drawn once; without, every run would want others."""
    node.refuse_unless(node.has_attr("seed"), "it draws new numbers at every run: give it a seed or make it an input")
    shape = list(node.attr("shape"))
    size = int(np.prod(shape, dtype=object)) if shape else 1
    node.refuse_unless(0 <= size <= _LARGEST, f"expected at most {_LARGEST} numbers, found {size}")
    # As the reference implementation draws them.
    state = np.random.RandomState(seed=int(node.attr("seed")) & 0xFFFFFFFF)
    if node.op == "RandomNormal":
        values = state.randn(*shape) * node.attr("scale", 1.0) + node.attr("mean", 0.0)
    else:
        low, high = node.attr("low", 0.0), node.attr("high", 1.0)
        values = state.rand(*shape) * (high - low) + low
    return np.asarray(values).astype(onnx.helper.tensor_dtype_to_np_dtype(node.attr("dtype", onnx.TensorProto.FLOAT)))


@converter("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
def undetermined(node: Node) -> relax.Expr:
    node.refuse("it draws new numbers at every run: export the model for inference, or make the numbers an input")


@converter("Dropout")
def dropout(node: Node) -> tuple[object, relax.Expr | None]:
    """Inference: the input as it is, and a mask that keeps everything."""
    if node.has(2) and node.scalar(2) and (not node.has(1) or node.scalar(1) != 0):
        node.refuse("it drops values at random in training mode: export the model for inference")
    mask = None
    if len(node.outputs) > 1 and node.outputs[1]:
        dtype = "bool" if node.opset >= 10 else node.dtype(0)
        mask = relax.op.full(relax.ShapeExpr(node.shape(0)), relax.const(1, dtype), dtype)
    return node.value(0), mask
