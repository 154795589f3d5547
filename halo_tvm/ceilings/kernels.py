"""Kernels that do one thing as fast as the machine can: multiply-adds, products of bfloat16 and of bytes, reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..targets import Target

if TYPE_CHECKING:
    from tvm import tirx

ACCUMULATORS = 12  # independent chains: latency times units is at most 10 on today's cores; AVX2 has 16 registers
TILES = 6  # registers of sums in `tile_kernel`


def fma_kernel(threads: int, lanes: int) -> tirx.PrimFunc:
    """(out [threads, ACCUMULATORS, lanes], n): n fused multiply-adds on each element, in registers."""
    from tvm.script import tirx as T

    count = ACCUMULATORS

    @T.prim_func
    def main(out: T.Buffer((threads, count, lanes), "float32"), n: T.int64) -> None:
        for t in T.parallel(threads):
            acc = T.alloc_buffer((count, lanes), "float32", scope="local")
            for a in T.unroll(count):
                for v in T.vectorized(lanes):
                    acc[a, v] = out[t, a, v]
            for _ in T.serial(n):
                for a in T.unroll(count):
                    for v in T.vectorized(lanes):
                        acc[a, v] = acc[a, v] * T.float32(0.999) + T.float32(0.5)
            for a in T.unroll(count):
                for v in T.vectorized(lanes):
                    out[t, a, v] = acc[a, v]

    return main


def dot_kernel(threads: int) -> tirx.PrimFunc:
    """(out [threads, ACCUMULATORS, 16] int32, n): n dot products of four bytes (3 * 2) added to each element."""
    from tvm.script import tirx as T

    count = ACCUMULATORS

    @T.prim_func
    def main(out: T.Buffer((threads, count, 16), "int32"), n: T.int64) -> None:
        for t in T.parallel(threads):
            acc = T.alloc_buffer((count, 16), "int32", scope="local")
            for a in T.unroll(count):
                acc[a, T.ramp(0, 1, 16)] = out[t, a, T.ramp(0, 1, 16)]
            for _ in T.serial(n):
                for a in T.unroll(count):
                    acc[a, T.ramp(0, 1, 16)] = T.call_llvm_pure_intrin(
                        "int32x16",
                        T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
                        acc[a, T.ramp(0, 1, 16)],
                        T.reinterpret("int8x64", T.broadcast(T.int32(0x03030303), 16)),
                        T.reinterpret("int8x64", T.broadcast(T.int32(0x02020202), 16)),
                    )
            for a in T.unroll(count):
                out[t, a, T.ramp(0, 1, 16)] = acc[a, T.ramp(0, 1, 16)]

    return main


def pair_kernel(threads: int) -> tirx.PrimFunc:
    """(out [threads, ACCUMULATORS, 16], n): n products of two pairs of bfloat16 (1 * 3 + 2 * 0.5) added to each
    element; for a target with `Isa.bf16_dot`."""
    from tvm.script import tirx as T

    from ..tir_schedules.code import pair_dot

    count, lanes = ACCUMULATORS, pair_dot.LANES
    pragma, text, dot = pair_dot.PRAGMA, pair_dot.TEXT, pair_dot.NAME

    @T.prim_func
    def main(out: T.Buffer((threads, count, lanes), "float32"), n: T.int64) -> None:
        with T.attr(T.int32(0), pragma, text):
            for t in T.parallel(threads):
                acc = T.alloc_buffer((count, lanes), "float32", scope="local")
                for a in T.unroll(count):
                    acc[a, T.ramp(0, 1, lanes)] = out[t, a, T.ramp(0, 1, lanes)]
                for _ in T.serial(n):
                    for a in T.unroll(count):
                        acc[a, T.ramp(0, 1, lanes)] = T.call_pure_extern(
                            "float32x16",
                            dot,
                            acc[a, T.ramp(0, 1, lanes)],
                            T.broadcast(T.int32(0x40003F80), lanes),
                            T.broadcast(T.int32(0x3F004040), lanes),
                        )
                for a in T.unroll(count):
                    out[t, a, T.ramp(0, 1, lanes)] = acc[a, T.ramp(0, 1, lanes)]

    return main


def tile_kernel(threads: int, dtype: str) -> tirx.PrimFunc:
    """(out [threads, TILES, 16, 16] of `dtype`, n): n products of 16 rows of 64 bytes added to each 16 x 16 sums, for a
    target with `Isa.tiles`. int32: bytes, 64 * (3 * 2); float32: pairs of bfloat16, 16 * (1 * 3 + 2 * 0.5)."""
    from tvm.script import tirx as T

    from ..tir_schedules.code import pair_dot, tile_registers

    count, pragma, text, whole = TILES, pair_dot.PRAGMA, tile_registers.WHOLE_TEXT, tile_registers.WHOLE
    multiply, x, weight = {
        "int32": ("llvm.x86.tdpbusd", 0x03030303, 0x02020202),
        "float32": ("llvm.x86.tdpbf16ps", 0x40003F80, 0x3F004040),
    }[dtype]

    @T.prim_func
    def main(out: T.Buffer((threads, count, 16, 16), dtype), n: T.int64) -> None:
        with T.attr(T.int32(0), pragma, text):
            for t in T.parallel(threads):
                operands = T.alloc_buffer((2, 256), "int32", align=64)
                for i in T.serial(256):
                    operands[0, i] = T.int32(x)
                    operands[1, i] = T.int32(weight)
                T.evaluate(T.call_extern("void", whole))
                for a in T.unroll(2):
                    T.evaluate(
                        T.call_llvm_intrin(
                            "void",
                            "llvm.x86.tileloadd64",
                            T.Cast("int8", a + count),
                            T.address_of(operands[a, 0]),
                            T.int64(64),
                        )
                    )
                for a in T.unroll(count):
                    T.evaluate(
                        T.call_llvm_intrin(
                            "void",
                            "llvm.x86.tileloadd64",
                            T.Cast("int8", a),
                            T.address_of(out[t, a, 0, 0]),
                            T.int64(64),
                        )
                    )
                for _ in T.serial(n):
                    for a in T.unroll(count):
                        T.evaluate(
                            T.call_llvm_intrin("void", multiply, T.Cast("int8", a), T.int8(count), T.int8(count + 1))
                        )
                for a in T.unroll(count):
                    T.evaluate(
                        T.call_llvm_intrin(
                            "void",
                            "llvm.x86.tilestored64",
                            T.Cast("int8", a),
                            T.address_of(out[t, a, 0, 0]),
                            T.int64(64),
                        )
                    )
                T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilerelease"))

    return main


def read_kernel(threads: int, lanes: int, chunks: int) -> tirx.PrimFunc:
    """(x [threads, chunks, ACCUMULATORS, lanes], out [threads, ...], n): n sums over each thread's part."""
    from tvm.script import tirx as T

    count = ACCUMULATORS

    @T.prim_func
    def main(
        x: T.Buffer((threads, chunks, count, lanes), "float32"),
        out: T.Buffer((threads, count, lanes), "float32"),
        n: T.int64,
    ) -> None:
        for t in T.parallel(threads):
            acc = T.alloc_buffer((count, lanes), "float32", scope="local")
            for a in T.unroll(count):
                for v in T.vectorized(lanes):
                    acc[a, v] = T.float32(0)
            for _ in T.serial(n):
                for c in T.serial(chunks):
                    for a in T.unroll(count):
                        for v in T.vectorized(lanes):
                            acc[a, v] = acc[a, v] + x[t, c, a, v]
            for a in T.unroll(count):
                for v in T.vectorized(lanes):
                    out[t, a, v] = acc[a, v]

    return main


def compiled(func: tirx.PrimFunc, target: Target) -> Callable[..., None]:
    """A kernel of this file, built for `target`."""
    import tvm

    return tvm.compile(func.with_attr("global_symbol", "main"), target=target.tvm)["main"]
