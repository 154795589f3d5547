"""Tensors may begin wherever their elements may: NumPy's do at a multiple of 16 bytes, parts of an array of less.

Before -> after, in a function whose arguments TVM has packed
    x begins at a multiple of 64 bytes: work(x)    ->    work(x), whose loads of vectors ask for no address
Serves
    functions for CPUs, where a load that may begin anywhere takes no longer at an address that would have suited it
Without it a caller's array is copied first: 4 MiB of NumPy's take four times as long to clip.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from .loads_in_order import loads_in_order

PIPELINE = "halo_tvm_all_checks"  # the name to give to `tirx.build` and `relax.build`
_PROMISE = "storage_alignment"


def _pipeline() -> tuple[tvm.transform.Pass, object, object]:
    passes, of_host, of_device = default_s_tir_pipeline()
    return passes, lambda: tvm.ir.transform.Sequential([any_address, loads_in_order, of_host()]), of_device


register_tir_pipeline(PIPELINE, _pipeline)


@tirx.transform.prim_func_pass(opt_level=0, name="halo.AnyAddress")
def any_address(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """The pass, for functions behind TVM's `MakePackedAPI`."""
    return func.with_body(tvm_ffi.structural_map(func.body, ((tirx.AttrStmt, _without_promise),), order="post"))


def _without_promise(scope: tirx.AttrStmt) -> tirx.Stmt:
    return scope.body if scope.attr_key == _PROMISE else scope
