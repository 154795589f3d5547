"""Quantised weights as unsigned bytes, for an engine whose sums of signed ones may saturate.

On x86 CPUs with AVX2 but no VNNI onnxruntime multiplies unsigned activations by signed weights in pairs and keeps each
sum in 16 bits: 2 * 255 * 127 does not fit. Unsigned weights it widens first. A weight plus 128 with a zero point plus
128 is the same number, so the reference is that of exact integers on every CPU. Signed activations stay with signed
weights: onnxruntime has no product of the two kinds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MIDDLE = 128
_MOST_BYTES = (1 << 31) - (1 << 20)  # of a message; a larger model stays as it is
# Operator -> the places of its weights, each with that of the zero point.
_WEIGHTS = {
    "MatMulInteger": ((1, 3),),
    "ConvInteger": ((1, 3),),
    "QLinearMatMul": ((3, 5),),
    "QLinearConv": ((3, 5),),
    "DynamicQuantizeMatMul": ((1, 3),),
    "MatMulIntegerToFloat": ((1, 5),),
    "QGemm": ((3, 5),),
    "QAttention": ((1, 7),),
    "DynamicQuantizeLSTM": ((1, 9), (2, 11)),
}
# Operator -> the place of the zero point of its activations, the first input; the others get numbers, not integers.
_POINTS = {
    "MatMulInteger": 2,
    "ConvInteger": 2,
    "QLinearMatMul": 2,
    "QLinearConv": 2,
    "MatMulIntegerToFloat": 4,
    "QGemm": 2,
    "QAttention": 6,
}


def with_unsigned_weights(model: str | bytes) -> str | bytes:
    """A model, its file or its bytes, whose quantised products have no int8 weights; `model` itself where none has."""
    import onnx

    proto = onnx.load(model) if isinstance(model, str) else onnx.load_model_from_string(model)
    known = {tensor.name: tensor for tensor in proto.graph.initializer}
    changed = False
    for node in proto.graph.node:
        if not _is_unsigned(proto.graph, known, node):
            continue
        for weight, zero in _WEIGHTS.get(node.op_type, ()):
            changed |= _change(proto.graph, known, node, weight, zero)
    return proto.SerializeToString() if changed and sum(map(_bytes, known.values())) < _MOST_BYTES else model


def _is_unsigned(graph: Any, known: dict[str, Any], node: Any) -> bool:
    """Whether the activations are known to be uint8; DynamicQuantizeLinear, whose point is computed, makes such."""
    from onnx import TensorProto

    if node.op_type not in _POINTS:
        return True
    place = _POINTS[node.op_type]
    point = node.input[place] if place < len(node.input) else ""
    if point:
        return point not in known or known[point].data_type == TensorProto.UINT8
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    made = {name for other in graph.node if other.op_type == "DynamicQuantizeLinear" for name in other.output[:1]}
    return node.input[0] in made or types.get(node.input[0]) == TensorProto.UINT8


def _bytes(tensor: Any) -> int:
    return len(tensor.raw_data) or tensor.ByteSize()


def _change(graph: Any, known: dict[str, Any], node: Any, weight: int, zero: int) -> bool:
    """Whether the weight was int8, and known: then `node` reads an unsigned one."""
    from onnx import numpy_helper

    name = node.input[weight]
    point = node.input[zero] if zero < len(node.input) else ""
    if name not in known or (point and point not in known):
        return False
    values = numpy_helper.to_array(known[name])
    if values.dtype != np.int8:
        return False
    node.input.extend([""] * (zero + 1 - len(node.input)))
    node.input[weight] = _kept(graph, known, f"{name}/unsigned", values)
    points = numpy_helper.to_array(known[point]) if point else _no_point(node.op_type, values)
    node.input[zero] = _kept(graph, known, f"{point or name + '/zero'}/unsigned", points)
    return True


def _no_point(kind: str, weight: np.ndarray) -> np.ndarray:
    """The zero point that stands for none: one number, for an LSTM one of each direction."""
    return np.zeros(weight.shape[:1] if kind == "DynamicQuantizeLSTM" else (), np.int8)


def _kept(graph: Any, known: dict[str, Any], name: str, values: np.ndarray) -> str:
    """The name of an initializer of `values` plus 128, made where there is none yet."""
    from onnx import numpy_helper

    if name not in known:
        known[name] = numpy_helper.from_array((values.astype(np.int16) + _MIDDLE).astype(np.uint8), name)
        graph.initializer.append(known[name])
    return name
