"""The only place that knows TVM's private names or versions."""

from __future__ import annotations

from tvm import IRModule, ir
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

    return frozenset(onnx_frontend._get_convert_map()) | {"Constant"}


def from_onnx(model: object) -> IRModule:
    """An onnx.ModelProto through TVM's frontend, its initialisers as parameters of main."""
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(model, keep_params_in_input=True)
