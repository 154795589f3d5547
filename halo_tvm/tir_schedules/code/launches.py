"""Launches with nothing to compute are left out: CUDA refuses a grid of no blocks.

Before -> after
    for blockIdx.x in n * d: ...   ->   for launch in min(n * d, 1): for blockIdx.x in n * d: ...
    for blockIdx.x in 0: ...       ->   nothing
Why
    Inputs have at least one element, but what is derived from them need not: x[:, 1:] of one column, an empty part of
    a concatenation. A loop on the host, because TVM puts no barriers into what is under a condition.
"""

from __future__ import annotations

import functools

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr

from .lanes import as_int64, constant, index, loop, simplify


def without_empty_launches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, scheduled for a GPU, whose host code launches a kernel only where its grid has blocks."""
    found = _launches(func.body)

    def launch(loop: tirx.For) -> tirx.Stmt:
        return _guarded(loop) if any(loop.same_as(other) for other in found) else loop

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, launch), order="post"))


def _launches(body: tirx.Stmt) -> list[tirx.For]:
    """The outermost loops that are bound to blocks or threads: each is a kernel."""
    found: list[tirx.For] = []
    inner: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING and not any(loop.same_as(other) for other in inner):
            found.append(loop)
            tvm_ffi.structural_walk(loop.body, (tirx.For, inner.append), order="pre")

    tvm_ffi.structural_walk(body, (tirx.For, visit), order="pre")
    return found


def _guarded(kernel: tirx.For) -> tirx.Stmt:
    extents: list[Expr] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING and str(loop.thread_binding.thread_tag).startswith("blockIdx"):
            extents.append(loop.extent)

    tvm_ffi.structural_walk(kernel, (tirx.For, visit), order="pre")
    if any(constant(extent) == 0 for extent in extents):
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    counts = [as_int64(extent) for extent in extents if constant(extent) is None]
    if not counts:
        return kernel
    return loop("launch", simplify(functools.reduce(tirx.min, counts, index(1))), lambda _: [kernel])
