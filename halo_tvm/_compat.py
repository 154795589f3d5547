"""The only place that knows TVM's private names or versions."""

from __future__ import annotations

from tvm import ir
from tvm.ir import _ffi_api as _ir_api

PINNED_TVM = "0.27.0.post1"
PINNED_TVM_FFI = "0.1.14.post1"


def register_relax_op(name: str, description: str) -> None:
    """Register `name` with TVM's operator registry, once per process."""
    if name not in ir.Op.list_op_names():
        _ir_api.RegisterOp(name, description)


def onnx_operators() -> frozenset[str]:
    """Operators of the default domain that TVM's ONNX frontend has a converter for."""
    from tvm.relax.frontend.onnx import onnx_frontend

    return frozenset(onnx_frontend._get_convert_map())


def convert_onnx_node(
    builder: object, operator: str, inputs: list, attributes: object, opset: int, outputs: int
) -> object:
    """One ONNX node through the converter of TVM's own frontend; `attributes` are AttributeProtos."""
    from tvm.relax.frontend.onnx import onnx_frontend

    attrs = onnx_frontend.ONNXGraphImporter({}, "float32")._parse_attr(attributes)
    attrs["tvm_custom"] = {"name": operator, "num_outputs": outputs}
    function = onnx_frontend._get_convert_map()[operator].get_converter(opset)
    return builder.normalize(function(builder, onnx_frontend.onnx_input(inputs), attrs, [{}, {}]))
