"""Rows of float32 as float16, in a kernel of their own in front of the product: none overflows and none vanishes.

Each row is divided by the power of two that brings its largest magnitude under one, which loses nothing, and rounded;
the sums of products are multiplied back in float32. It takes the whole row to know its largest magnitude, so no block
of the product could round what it copies; and blocks of columns then copy half the bytes, and read them by ldmatrix.
bfloat16 has the range of float32: such rows are rounded on the way.

After:
    block of threads = one row:
        each thread: largest magnitude of its pieces of 16 bytes; of warps by shuffles, of the block in shared memory
        the pieces again, out of the cache: times 1 / scale, rounded
"""

from __future__ import annotations

import math

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ....targets import WARP
from ...code.threads import across_threads, for_each_piece
from .._product import Product

_EXPONENT = 0x7F800000  # bits of a float32
_LEAST = 2.0**-126  # magnitude of the scale's least row; what is smaller is subnormal in float32, too
_MOST = 2.0**120  # of the greatest: rows beyond it stay under 2**8, infinite ones infinite
_PIECE = 4  # elements of 16 bytes
_PER_THREAD = 8  # pieces, until more warps share a row
_MOST_WARPS = 8


def rounds_first(product: Product) -> bool:
    """Whether x is rounded before it is copied."""
    return product.x_dtype == "float32" and product.weight_dtype == "float16"


def round_rows(product: Product) -> tuple[ir.Var, ir.Var]:
    """Emit the kernel that makes x / scale [m, k] in float16 and scale [m] in float32, both in memory."""
    m, k = product.m, product.k
    warps = _warps(k)
    half = IRBuilder.name("x_half", T.sblock_alloc_buffer((m, k), "float16"))
    scale = IRBuilder.name("x_scale", T.sblock_alloc_buffer((m,), "float32"))
    with (
        T.thread_binding(m, thread="blockIdx.x") as row,
        T.thread_binding(warps * WARP, thread="threadIdx.x") as thread,
        T.sblock("round_rows"),
    ):
        T.reads()
        T.writes()
        width = math.gcd(k, _PIECE)
        part = T.alloc_buffer((width,), "float32", scope="local")
        rounded = T.alloc_buffer((width,), "float16", scope="local")
        known = T.alloc_buffer((2,), "float32", scope="local")  # largest magnitude, then what divides by the scale

        def read(at: ir.Expr) -> None:
            with T.vectorized(width) as e:
                T.buffer_store(part, product.x[row, at + e], [e])

        def measure(at: ir.Expr) -> None:
            read(at)
            with T.unroll(width) as e:
                T.buffer_store(known, tirx.max(known[0], tirx.abs(part[e])), [0])

        def store(at: ir.Expr) -> None:
            read(at)
            with T.unroll(width) as e:
                T.buffer_store(rounded, tirx.Cast("float16", part[e] * known[1]), [e])
            with T.vectorized(width) as e:
                T.buffer_store(half, rounded[e], [row, at + e])

        T.buffer_store(known, _float(_LEAST), [0])
        for_each_piece(k, warps * WARP, thread, width, measure)
        _largest_of_block(known, warps, thread)
        bits = tirx.reinterpret("int32", tirx.min(known[0], _float(_MOST))) & tirx.const(_EXPONENT, "int32")
        T.buffer_store(known, tirx.reinterpret("float32", bits) * _float(2.0), [0])
        T.buffer_store(known, _float(1.0) / known[0], [1])
        with T.If(thread == 0), T.Then():
            T.buffer_store(scale, known[0], [row])
        for_each_piece(k, warps * WARP, thread, width, store)
    return half, scale


def _warps(k: int) -> int:
    """Warps of a row, a power of two."""
    warps = 1
    while warps < _MOST_WARPS and warps * WARP * _PIECE * _PER_THREAD < k:
        warps *= 2
    return warps


def _largest_of_block(known: ir.Var, warps: int, thread: ir.Var) -> None:
    """known[0] of all threads, in all of them."""
    for stmt in across_threads(known, tirx.Max, WARP):
        T.add_to_parent(stmt)
    if warps == 1:
        return
    kept = T.sblock_alloc_buffer((warps,), "float32", scope="shared")
    with T.If(thread % WARP == 0), T.Then():
        T.buffer_store(kept, known[0], [thread // WARP])
    T.evaluate(T.tvm_storage_sync("shared"))
    for warp in range(warps):
        T.buffer_store(known, tirx.max(known[0], kept[warp]), [0])


def _float(value: float) -> ir.Expr:
    return tirx.const(value, "float32")
