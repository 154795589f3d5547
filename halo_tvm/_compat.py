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


# Rounding to even has a vector instruction everywhere, but TVM does not say so: a loop over it became scalar code.
ir.register_op_attr("tirx.nearbyint", "TVectorizable", True)
