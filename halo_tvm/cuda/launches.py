"""What only the lowered program knows of a kernel: its shared memory, and what no GPU can run."""

from __future__ import annotations

import math
from typing import TypeVar

import tvm
import tvm_ffi
from tvm import tirx

from ..dimensions import itemsize_of
from ..errors import UnsupportedModel
from .arch import LAUNCH_LIMITS

SPLIT = "tirx.SplitHostDevice"  # from here on kernels are functions of their own, and share one allocation each
_DEVICE = 2  # calling convention of a function that is launched
STATIC, DYNAMIC = "shared", "shared.dyn"
S = TypeVar("S", bound=tirx.Stmt)
_OF_THREADS = ("local", STATIC, DYNAMIC)


@tvm.ir.instrument.pass_instrument
class DynamicShared:
    """An instrument of a build: `bytes_of` each kernel, by its name in the source; none where it asks for none."""

    def __init__(self) -> None:
        self._bytes_of: dict[str, int] = {}
        self._refusal: UnsupportedModel | None = None  # an error inside of a build would become one of TVM's

    @property
    def bytes_of(self) -> dict[str, int]:
        """By kernel; `UnsupportedModel` for what would be a wrong library, see `check_kernels`."""
        if self._refusal is not None:
            raise self._refusal
        return self._bytes_of

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name != SPLIT:
            return
        try:
            check_kernels(mod)
        except UnsupportedModel as refusal:
            self._refusal = refusal
        for gvar, func in mod.functions_items():
            if is_kernel(func):
                found = shared_bytes(func, DYNAMIC)
                if found:
                    self._bytes_of[str(func.attrs.get("global_symbol", gvar.name_hint))] = found


def check_kernels(mod: tvm.IRModule) -> None:
    """`UnsupportedModel` for memory of threads that is allocated on the host, and for grids that CUDA refuses.

    TVM hands such memory to kernels as a pointer, and a launch of too many blocks fails when it runs.
    """
    for gvar, func in mod.functions_items():
        if is_kernel(func):
            for node in _all(func.body, tirx.AttrStmt):
                _check_extent(gvar.name_hint, node)
        elif isinstance(func, tirx.PrimFunc):
            for node in _all(func.body, tirx.AllocBuffer):
                _check_allocation(gvar.name_hint, node)


def _all(body: tirx.Stmt, kind: type[S]) -> list[S]:
    found: list[S] = []
    tvm_ffi.structural_walk(body, [(kind, found.append)], order="post")
    return found


def _check_extent(name: str, node: tirx.AttrStmt) -> None:
    if node.attr_key != "thread_extent" or not isinstance(node.value, tirx.IntImm):
        return
    tag, extent = str(node.node.thread_tag), int(node.value)
    most = LAUNCH_LIMITS.get(tag, extent)
    if extent > most:
        raise UnsupportedModel(
            f"expected at most {most} along {tag} of a launch, found {extent} in {name}: compile for smaller sizes, or "
            "report this model"
        )


def _check_allocation(name: str, node: tirx.AllocBuffer) -> None:
    scope = str(node.buffer.scope())
    if scope in _OF_THREADS:
        raise UnsupportedModel(
            f"expected {scope} memory inside of kernels alone, found {node.buffer.name} of {name} outside of any: "
            "report this model; it runs on a CPU"
        )


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
