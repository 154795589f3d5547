"""The net for GPUs: TVM's own rule, which binds every spatial loop to blocks and threads.

Running sums and the like have threads of their own (`_scan_gpu`). What TVM's rule cannot read, such as the steps of a
recurrence, runs on one thread: right, and slow. So does what has loops of no steps, by whose number it would divide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.dlight.gpu import Fallback as ThreadBinding

from ...errors import Declined
from ...named_sizes import with_named_sizes
from ..blocks import is_scheduled
from ..code.lanes import constant
from ..rule import Rule, scheduled
from ._scan_gpu import scanned

if TYPE_CHECKING:
    from ...targets import Target


@dataclass(frozen=True)
class Decision:
    """TVM's rule takes its number of threads from the target: nothing to decide."""


class FallbackGPU(Rule[Decision]):
    """Inline what can be inlined, bind the rest."""

    name = "fallback_gpu"
    Decision = Decision

    def default(self, func: tirx.PrimFunc, target: Target) -> Decision:
        return Decision()

    def apply(self, func: tirx.PrimFunc, target: Target, decision: Decision) -> tirx.PrimFunc:
        if is_scheduled(func):
            return func
        func = with_named_sizes(func)
        if (done := scanned(func)) is not None:
            return done
        with target.tvm:
            schedule = None if _has_nothing_to_do(func) else ThreadBinding().apply(func, target.tvm, False)
        done = _on_one_thread(func) if schedule is None else scheduled(schedule)
        return done.with_attr("tirx.is_scheduled", True)


def _has_nothing_to_do(func: tirx.PrimFunc) -> bool:
    """Whether some loop has no steps."""
    extents: list[int | None] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, lambda loop: extents.append(constant(loop.extent))), order="post")
    return 0 in extents


def _on_one_thread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The whole function on one thread; what it allocates stays in global memory, whatever its size."""
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize):
        raise Declined("a function with a root block is served, and this one has none")
    body, inner = _without_allocations(root.block.body)
    allocated = [*root.block.alloc_buffers, *inner]
    # TVM allocates a buffer where all of its uses are, and a kernel cannot allocate global memory: one use in
    # another kernel keeps the buffer outside both.
    touched = [
        tirx.BufferStore(buffer, tirx.const(0, str(buffer.dtype)), [tirx.const(0, "int64")] * len(buffer.shape))
        for buffer in allocated
    ]
    kernels = [_kernel(tirx.SeqStmt(touched) if len(touched) > 1 else touched[0])] if touched else []
    kernels.append(_kernel(body))
    whole = tirx.SeqStmt(kernels) if len(kernels) > 1 else kernels[0]
    return func.with_body(s_tir.SBlockRealize(root.iter_values, root.predicate, _with(root.block, whole, allocated)))


def _kernel(body: tirx.Stmt) -> tirx.For:
    """`body` launched with one block of one thread."""
    for tag in ("threadIdx.x", "blockIdx.x"):
        var = tirx.Var(tag.replace(".", "_"), "int32")
        binding = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)
        body = tirx.For(var, 0, 1, tirx.ForKind.THREAD_BINDING, body, binding)
    return body


def _without_allocations(stmt: tirx.Stmt) -> tuple[tirx.Stmt, list[tirx.Buffer]]:
    """`stmt`, and what its blocks allocate, which is left to the function around it."""
    found: list[tirx.Buffer] = []

    def strip(block: s_tir.SBlock) -> s_tir.SBlock:
        found.extend(block.alloc_buffers)
        return _with(block, block.body, [])

    return tvm_ffi.structural_map(stmt, (s_tir.SBlock, strip), order="post"), found


def _with(block: s_tir.SBlock, body: tirx.Stmt, allocated: list[tirx.Buffer]) -> s_tir.SBlock:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        allocated,
        block.match_buffers,
        block.annotations,
    )
