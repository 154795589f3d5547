"""What only the lowered program knows of a kernel: its shared memory."""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx

from ..dimensions import itemsize_of

SPLIT = "tirx.SplitHostDevice"  # from here on kernels are functions of their own, and share one allocation each
_DEVICE = 2  # calling convention of a function that is launched
STATIC, DYNAMIC = "shared", "shared.dyn"


@tvm.ir.instrument.pass_instrument
class DynamicShared:
    """An instrument of a build: `bytes_of` each kernel, by its name in the source; none where it asks for none."""

    def __init__(self) -> None:
        self.bytes_of: dict[str, int] = {}

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name != SPLIT:
            return
        for gvar, func in mod.functions_items():
            if is_kernel(func):
                found = shared_bytes(func, DYNAMIC)
                if found:
                    self.bytes_of[str(func.attrs.get("global_symbol", gvar.name_hint))] = found


def is_kernel(func: tvm.ir.BaseFunc) -> bool:
    """Whether `func` is launched on the device."""
    return isinstance(func, tirx.PrimFunc) and bool(func.attrs) and func.attrs.get("calling_conv") == _DEVICE


def shared_bytes(func: tirx.PrimFunc, scope: str) -> int:
    """Bytes that the kernel `func` allocates in STATIC or DYNAMIC; a size known only at launch counts as 0."""
    total = 0

    def visit(node: tirx.AllocBuffer) -> None:
        nonlocal total
        shape = node.buffer.shape
        if node.buffer.scope() == scope and all(isinstance(dim, tirx.IntImm) for dim in shape):
            total += itemsize_of(node.buffer.dtype) * math.prod(int(dim) for dim in shape)

    tvm_ffi.structural_walk(func.body, [(tirx.AllocBuffer, visit)], order="post")
    return total
