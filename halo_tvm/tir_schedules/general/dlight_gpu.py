"""TVM's own rules for GPUs, each by name, for what the rules here decline.

They fix their tile sizes, so there is nothing to decide. TVM's bare None is recorded as "gives no reason", an error
over a function that they half recognise as `Stopped`. Those for what ours serve (transposes, norms, products of one
row) are not here.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir import dlight

from ...dimensions import itemsize_of
from ...errors import Declined, Stopped
from ...targets import LAUNCH_LIMITS, STATIC_SHARED_BYTES
from ..blocks import is_scheduled, substitute
from ..code.lanes import as_int64, constant, index, product, unravel
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
            mod = found and _along_one_axis(s_tir.transform.LowerCrossThreadReduction()(found.mod))
            compact = found and _UNTIL_COMPACT(mod)
        except Exception as reason:  # foreign code: whatever it trips over (unpacking, a missing loop) is its refusal
            first = (str(reason).strip() or "nothing more").splitlines()[0][:200]
            raise Stopped(f"TVM's rule stops with {type(reason).__name__}: {first}") from reason
    if found is None:
        raise Declined("TVM's rule gives no reason")
    _check_memory(compact[compact.get_global_vars()[0]])
    return mod


def _along_one_axis(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` whose kernel may have any number of blocks: the second and third axis of a grid end at 65,535.

    Before -> after, where an extent of those is open or larger
        for blockIdx.y in b: for blockIdx.x in n: f(y, x)   ->   for blockIdx.x in b * n: f(x // n, x % n)
    """
    (gvar,) = mod.get_global_vars()
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(
        mod[gvar].body, (tirx.For, lambda nest: found.append(nest) if _axis(nest) else None), order="pre"
    )
    extents = {_axis(nest): constant(nest.extent) for nest in found if _axis(nest) != "blockIdx.x"}
    if all(size is not None and size <= LAUNCH_LIMITS[axis] for axis, size in extents.items()):
        return mod
    if any(not outer.body.same_as(inner) for outer, inner in itertools.pairwise(found)):
        raise Declined("TVM's rule makes more than one grid, and CUDA may not take as many blocks along an axis of one")
    block = tirx.Var("block", "int64")
    places = unravel(block, [as_int64(nest.extent) for nest in found])
    at = {nest.loop_var: place.astype(str(nest.loop_var.ty.dtype)) for nest, place in zip(found, places)}
    inside = substitute(found[-1].body, at, {})
    blocks = product([nest.extent for nest in found])
    binding = tirx.IterVar(None, block, tirx.IterVar.ThreadIndex, "blockIdx.x")
    whole = tirx.For(block, index(0), blocks, tirx.ForKind.THREAD_BINDING, inside, binding)
    body = tvm_ffi.structural_map(
        mod[gvar].body, (tirx.For, lambda nest: whole if nest.same_as(found[0]) else nest), order="pre"
    )
    return tvm.IRModule({gvar: mod[gvar].with_body(body)})


def _axis(nest: tirx.For) -> str:
    """The axis of the grid that `nest` is bound to; nothing for other loops."""
    tag = str(nest.thread_binding.thread_tag) if nest.kind == tirx.ForKind.THREAD_BINDING else ""
    return tag if tag.startswith("blockIdx") else ""


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
