"""How much work and memory it takes to compute a node of constants while importing: little, or it is not done.

A file of some hundred bytes can ask for a result of many gigabytes, and reference implementations may loop in Python
over every element; both must be known before they start.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from ._node import Node

_MOST_ELEMENTS = 1 << 28  # of one result; the importer bounds what all of them take
_MOST_SLOW = 1 << 16  # elements read and written by operators that the reference implements as loops
_SLOWNESS = 64  # what one element costs there, in elements of NumPy

# The results of these have no more elements than their operands together.
_NO_GROWTH = frozenset(
    "Identity Cast CastLike Reshape Squeeze Unsqueeze Flatten Transpose Slice Split Concat Shape Size Not Neg Abs Sign "
    "Sqrt Reciprocal Exp Log Floor Ceil Round Sin Cos Tan Tanh Sigmoid Relu Erf Clip IsNaN IsInf Trilu CumSum Compress "
    "Unique ReduceSum ReduceProd ReduceMax ReduceMin ReduceMean ArgMax ArgMin Softmax TopK BitwiseNot".split()
)
_BROADCAST = frozenset(
    "Add Sub Mul Div Mod Pow Min Max Sum Mean And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual Where PRelu "
    "BitShift BitwiseAnd BitwiseOr BitwiseXor".split()
)
# NumPy does these at once, whatever their size.
_FAST = frozenset("ConstantOfShape Expand Tile Range Gather GatherND Pad OneHot EyeLike MatMul Gemm NonZero".split())


def is_cheap(node: Node, inputs: list[np.ndarray | None], model: onnx.ModelProto) -> bool:
    """Whether `node`, on its own in `model`, is computed in moments. A result of absurd size is refused outright."""
    read = sum(x.size for x in inputs if x is not None)
    if node.op in _NO_GROWTH:
        node.graph.budget.count_work(read)
        return True
    if node.op == "NonZero":
        count = read * max(x.ndim for x in inputs if x is not None)
    elif node.op in _BROADCAST:
        count = math.prod(np.broadcast_shapes(*(x.shape for x in inputs if x is not None)))
    elif node.op == "Range":
        start, limit, delta = (float(x.reshape(-1)[0]) for x in inputs)
        ratio = (limit - start) / delta
        count = max(0, math.ceil(ratio)) if math.isfinite(ratio) else _MOST_ELEMENTS + 1
    else:
        found = _inferred(inputs, model)
        if found is None:
            return False
        count = found
    if count > _MOST_ELEMENTS:
        node.refuse(f"its constant result would have {count} elements")
    fast = node.op in _BROADCAST or node.op in _FAST
    if not fast and read + count > _MOST_SLOW:
        return False
    node.graph.budget.count_work((read + count) * (1 if fast else _SLOWNESS))
    return True


def _inferred(inputs: list[np.ndarray | None], model: onnx.ModelProto) -> int | None:
    """Elements of all results by shape inference; None where it has no answer."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for index, x in enumerate(inputs):
        if x is not None and x.size <= 1024:
            known.graph.initializer.append(onnx.numpy_helper.from_array(x, f"x{index}"))
    for output in known.graph.output:
        output.ClearField("type")
    graph = onnx.shape_inference.infer_shapes(known, data_prop=True).graph
    total = 0
    for output in graph.output:
        kind = output.type.tensor_type
        if not kind.HasField("shape") or any(not d.HasField("dim_value") or d.dim_value < 0 for d in kind.shape.dim):
            return None
        total += math.prod(d.dim_value for d in kind.shape.dim)
    return total
