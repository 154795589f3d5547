"""TVM's own rules for GPUs, each by name, for what the rules here decline.

They fix their tile sizes, so there is nothing to decide. TVM's bare None is recorded as "gives no reason", an error
over a function that they half recognise as `Stopped`. Those for what ours serve (transposes, norms, products of one
row) are not here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir import dlight

from ...dimensions import itemsize_of
from ...errors import Declined, Stopped
from ...targets.gpu_levels import STATIC_SHARED_BYTES
from ..blocks import is_scheduled
from ..code.lanes import constant
from ..rule import Rule

if TYPE_CHECKING:
    from ...targets import Target


@dataclass(frozen=True)
class Decision:
    """TVM's rules decide by themselves."""


class _Theirs:
    """What all of them share; `theirs` is TVM's rule."""

    Decision = Decision
    theirs: ClassVar[type[dlight.base.ScheduleRule]]

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        _scheduled(self.theirs, func, target)
        return Decision()

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        mod = _scheduled(self.theirs, func, target)
        return mod[mod.get_global_vars()[0]].with_attr("tirx.is_scheduled", True)


@functools.lru_cache(maxsize=1)  # what serves a function is applied to it next
def _scheduled(theirs: type[dlight.base.ScheduleRule], func: tirx.PrimFunc, target: Target) -> tvm.IRModule:
    if is_scheduled(func):
        raise Declined("the function is scheduled already")
    apply = theirs().apply
    with target.tvm:
        try:
            found = apply(func, target.tvm, False)
            # Threads that add up together are found by the form of their blocks, which what follows may change.
            mod = found and s_tir.transform.LowerCrossThreadReduction()(found.mod)
            compact = found and _UNTIL_COMPACT(mod)
        except Exception as reason:  # foreign code: whatever it trips over (unpacking, a missing loop) is its refusal
            first = (str(reason).strip() or "nothing more").splitlines()[0][:200]
            raise Stopped(f"TVM's rule stops with {type(reason).__name__}: {first}") from reason
    if found is None:
        raise Declined("TVM's rule gives no reason")
    _check_memory(compact[compact.get_global_vars()[0]])
    return mod


# TVM's lowering up to where buffers have the sizes that a block of threads takes.
_UNTIL_COMPACT = tvm.ir.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.ManifestSharedMemoryLocalStage(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)


def _check_memory(func: tirx.PrimFunc) -> None:
    """`Declined` where a block keeps more than it may, or what is as large as a size that is known when it runs."""
    kept: list[ir.Var] = []
    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, lambda block: kept.extend(block.alloc_buffers))])
    shared = 0
    for buffer in kept:
        sizes, scope = [constant(dim) for dim in buffer.shape], buffer.scope()
        if scope != "global" and None in sizes:
            raise Declined(f"TVM's rule keeps a buffer of unknown size in {scope} memory")
        shared += itemsize_of(buffer.dtype) * math.prod(sizes) if scope == "shared" else 0
    if shared > STATIC_SHARED_BYTES:
        raise Declined(f"TVM's rule keeps {shared} bytes in shared memory, where {STATIC_SHARED_BYTES} are a block's")


class DlightReduction(_Theirs, Rule[Decision]):
    """Reductions over trailing or leading axes, with what is fused behind them."""

    name = "dlight_reduction"
    theirs = dlight.gpu.Reduction


class DlightGeneralReduction(_Theirs, Rule[Decision]):
    """Chains of reductions over the same trailing axes."""

    name = "dlight_general_reduction"
    theirs = dlight.gpu.GeneralReduction


class DlightMatmul(_Theirs, Rule[Decision]):
    """Products of matrices."""

    name = "dlight_matmul"
    theirs = dlight.gpu.Matmul
