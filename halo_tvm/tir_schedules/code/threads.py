"""Kernels written as statements: loops bound to blocks and threads, vector copies, reductions across threads.

TVM's own passes put the barriers between threads that meet in shared memory, and `tests/emulation` checks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T
from tvm.tirx.op import tvm_warp_shuffle_xor

from ...dimensions import itemsize_of
from ...targets import WARP, Target
from ..blocks import uses
from ..rule import gpu_of
from .lanes import constant, index, is_var, loop, seq, simplify

VECTOR_BYTES = 16  # of the widest load and store of one thread
LAUNCH_US = 2.0  # of a kernel behind another: a guess of every model, none measured
ALL_LANES = 0xFFFFFFFF  # of a warp: every shuffle is reached by all of them


def bound(tag: str, extent: Expr | int, body: Callable[[Expr], Sequence[tirx.Stmt]]) -> tirx.Stmt:
    """body(i) for each block or thread i of `tag` ("blockIdx.x", "threadIdx.y", ...)."""
    extent = index(extent) if isinstance(extent, int) else extent
    var = tirx.Var(tag.replace(".", "_"), "int64")
    binding = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, index(0), extent, tirx.ForKind.THREAD_BINDING, seq(body(var)), binding)


def unrolled(name: str, extent: int, body: Callable[[Expr], Sequence[tirx.Stmt]]) -> tirx.Stmt:
    """body(i) for 0 <= i < extent without a loop: what is indexed by i may then live in registers."""
    return loop(name, extent, body, tirx.ForKind.UNROLLED)


def registers(count: int, dtype: str, name: str) -> ir.Var:
    """A thread's own array; in registers when every index of it is a constant."""
    return tirx.decl_buffer([index(count)], dtype, name=name, scope="local")


def shared(count: int, dtype: str, name: str) -> ir.Var:
    """An array of a block's threads."""
    return tirx.decl_buffer([index(count)], dtype, name=name, scope="shared")


def vector_copy(
    to: ir.Var,
    to_at: Callable[[Expr], Sequence[Expr]],
    source: ir.Var,
    at: Callable[[Expr], Sequence[Expr]],
    lanes: int,
) -> tirx.Stmt:
    """to[to_at(l)] = source[at(l)] for 0 <= l < lanes, as one load and one store."""
    return loop(
        "lane",
        lanes,
        lambda lane: [tirx.BufferStore(to, tirx.BufferLoad(source, list(at(lane))), list(to_at(lane)))],
        tirx.ForKind.VECTORIZED,
    )


def is_row_access(buffer: ir.Var, indices: Sequence[Expr], axis: ir.Var, lanes: int) -> bool:
    """Whether `lanes` neighbours along `axis`, from a multiple of `lanes` on, are one vector of `buffer`."""
    if not indices or not is_var(indices[-1], axis) or any(uses(i, axis) for i in indices[:-1]):
        return False
    width = constant(buffer.shape[-1])
    return str(buffer.dtype) != "bool" and (lanes == 1 or len(indices) == 1 or width is not None and width % lanes == 0)


def vector_lanes(buffers: Sequence[ir.Var], extent: Expr | None) -> int:
    """The most elements, a power of two, of a vector of the widest of `buffers` that tiles `extent`; None: any."""
    widest = max((itemsize_of(b.dtype) for b in buffers), default=4)
    lanes, size = max(1, VECTOR_BYTES // widest), 0 if extent is None else constant(extent)
    if size is None:
        return 1
    return math.gcd(lanes, size)


def across_threads(
    value: ir.Var, operation: Callable[[Expr, Expr], Expr], threads: int, at: int = 0
) -> list[tirx.Stmt]:
    """value[at] reduced over groups of `threads` lanes of a warp, a power of two; all of them get the result."""
    out, here = [], [index(at)]
    step = threads // 2
    while step:
        # Lane l meets lane l ^ step: a group's lanes stay among themselves.
        other = tvm_warp_shuffle_xor(
            tirx.const(ALL_LANES, "uint32"),
            value[here[0]],
            tirx.const(step, "int32"),
            tirx.const(WARP, "int32"),
            tirx.const(WARP, "int32"),
        )
        # Before the operation, which may have conditions: all lanes of the warp reach a shuffle.
        theirs = tirx.Var("theirs", value.dtype)
        out += [tirx.Bind(theirs, other), tirx.BufferStore(value, operation(value[here[0]], theirs), here)]
        step //= 2
    return out


def across_warps(
    value: ir.Var, operation: Callable[[Expr, Expr], Expr], threads: int, thread: Expr, group: Expr, scratch: ir.Var
) -> list[tirx.Stmt]:
    """The same for groups of several warps; `scratch` has one place for each warp of the block."""
    warps = threads // WARP
    lane, base = simplify(tirx.floormod(thread, WARP)), simplify(group * index(warps))
    out = across_threads(value, operation, WARP)
    mine = simplify(base + tirx.floordiv(thread, WARP))
    out.append(tirx.IfThenElse(lane.equal(0), tirx.BufferStore(scratch, value[0], [mine]), None))
    theirs = simplify(base + tirx.floormod(thread, warps))
    out.append(tirx.BufferStore(value, scratch[theirs], [index(0)]))
    return out + across_threads(value, operation, warps)


def for_each_piece(k: int, threads: int, thread: Expr, width: int, body: Callable[[Expr], None]) -> None:
    """Emit body(first element) for every piece of `width` elements of a row of `k` that is this thread's.

    Neighbouring threads take neighbouring pieces; `width` divides `k`.
    """
    step = threads * width
    whole = k // step
    if whole:
        with T.serial(whole) as turn:
            body(turn * step + thread * width)
    if k % step:
        with T.If(whole * step + thread * width < k), T.Then():
            body(whole * step + thread * width)


def distinct(loads: Sequence[ir.TensorLoad]) -> list[ir.TensorLoad]:
    """Each access once."""
    found: list[ir.TensorLoad] = []
    for load in loads:
        if not any(tvm_ffi.structural_equal(load, other) for other in found):
            found.append(load)
    return found


def streaming_us(target: Target, size_bytes: float, *, lanes_bytes: int = VECTOR_BYTES) -> float:
    """Microseconds of a kernel that reads and writes so many bytes, by loads of `lanes_bytes`; a model, not measured.

    The device is the one whose rates the target's manifest names.
    """
    gpu = gpu_of(target)
    # A narrow load keeps fewer bytes in flight.
    share = {16: 0.92, 8: 0.88, 4: 0.80, 2: 0.60}.get(lanes_bytes, 0.40)
    return LAUNCH_US + size_bytes / (share * gpu.memory_gbps * 1e3)
