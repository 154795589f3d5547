"""Operators whose converter in TVM's own frontend passes every conformance test of the operator: reused as they are."""

from __future__ import annotations

from ... import _compat
from ._node import Node
from ._registry import CONVERTERS, converter


def reuse(*names: str, since: int = 1) -> None:
    """Serve `names` by TVM's converters, from operator version `since` on."""
    for name in names:
        if since not in CONVERTERS.get(("", name), {}):
            converter(name, since=since)(_through)


def _through(node: Node) -> object:
    inputs = [None if value is None else node.graph.expr_of(value) for value in node.inputs]
    return _compat.convert_onnx_node(
        node.graph.builder, node.op, inputs, node.proto.attribute, node.opset, len(node.outputs)
    )


reuse(
    *("Abs Acos Acosh Add And Asin Asinh Atan Atanh BatchNormalization Ceil Clip Conv Cos Cosh Div Elu Equal Erf Exp "
      "Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual "
      "HardSigmoid HardSwish InstanceNormalization IsNaN LRN LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max "
      "MaxPool AveragePool Min Mish Mod Mul Neg Not Or PRelu Pad Pow Reciprocal ReduceMax ReduceMean ReduceMin "
      "ReduceProd ReduceSum Relu Resize Round Selu Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign Split Sqrt "
      "Sub Sum Tan Tanh ThresholdedRelu Where Xor Cast ConvTranspose LayerNormalization Dropout").split(),
)  # fmt: skip
