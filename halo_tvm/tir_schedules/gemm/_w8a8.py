"""uint8 times int8 into int32: four consecutive k a step, in the widest form the instruction set has.

    vpdpbusd    four byte products added to each sum by one instruction
    vpmaddwd    bytes widened to 16 bits, even and odd k apart: two products of each added, then two additions.
                vpmaddubsw would take the bytes as they are, but saturates at 16 bits: never
    plain       one multiplication and one addition a product

The integers are the same in every form, so the results are, whatever the order of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ._arithmetic import Arithmetic, Tile

GROUP = 4
_EVEN_BYTES = 0x00FF00FF
_MADD = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


class W8A8(Arithmetic):
    """What the three forms share: types, and how four bytes of x and of the weight become vectors."""

    op = "linear_w8a8"
    dtypes = ("uint8", "int8", "int32")
    group = GROUP

    def step(self, tile: Tile, k: ir.Expr) -> None:
        for r, (acc,) in enumerate(tile.acc):
            four = tile.of_x(r, k * GROUP, GROUP)
            x = tirx.Broadcast(tirx.reinterpret("int32", four), tile.lanes)
            for v in range(tile.vectors):
                at = tirx.Ramp(v * tile.lanes, 1, tile.lanes)
                weight = tile.of_weight(k, v * tile.lanes, tirx.Ramp(0, 1, GROUP * tile.lanes))
                T.buffer_store(acc, self.add(acc[at], x, weight, tile.lanes), [at])

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        """int32 sums + x (four uint8 in each int32) * weight (int8, four for each sum)."""
        raise AssertionError(f"{type(self).__name__} lacks add")


@dataclass(frozen=True)
class DotBytes(W8A8):
    """One instruction for four products."""

    intrinsics: ClassVar[dict[int, str]] = {16: "llvm.x86.avx512.vpdpbusd.512"}

    def registers(self, rows: int, vectors: int) -> int:
        return rows * vectors + vectors + 1

    def instructions(self, rows: int, vectors: int) -> float:
        return rows * vectors

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        bytes_of_x = tirx.reinterpret(f"int8x{GROUP * lanes}", x)
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", self.intrinsics[lanes], total, bytes_of_x, weight)


@dataclass(frozen=True)
class WidenedPairs(W8A8):
    """16-bit products of even bytes and of odd bytes: both land in the sum of their own column."""

    unroll = 1  # LLVM mixes the steps of a longer iteration and runs out of registers

    def registers(self, rows: int, vectors: int) -> int:
        # Even and odd weights, even and odd x, a product, the mask.
        return rows * vectors + 2 * vectors + 4

    def instructions(self, rows: int, vectors: int) -> float:
        return 4 * rows * vectors + 3 * vectors + 2 * rows

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        words, eight = 2 * lanes, tirx.Broadcast(tirx.const(8, "int16"), 2 * lanes)
        w = tirx.reinterpret(f"int16x{words}", weight)
        even_x = tirx.reinterpret(f"int16x{words}", x & tirx.Broadcast(tirx.const(_EVEN_BYTES, "int32"), lanes))
        shifted = tirx.reinterpret(f"uint16x{words}", x) >> tirx.Broadcast(tirx.const(8, "uint16"), words)
        odd_x = tirx.reinterpret(f"int16x{words}", shifted)
        for a, b in ((even_x, (w << eight) >> eight), (odd_x, w >> eight)):
            total = total + tirx.call_llvm_pure_intrin(f"int32x{lanes}", _MADD[lanes], a, b)
        return total


@dataclass(frozen=True)
class PlainBytes(W8A8):
    """Bytes shifted out of 32 bits: for instruction sets of which nothing more is known."""

    unroll = 1

    def registers(self, rows: int, vectors: int) -> int:
        return rows * vectors + 2 * vectors + 2

    def instructions(self, rows: int, vectors: int) -> float:
        return GROUP * (2 * rows * vectors + 2 * vectors + rows)

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        def shift(bits: int) -> ir.Expr:
            return tirx.Broadcast(tirx.const(bits, "int32"), lanes)

        w = tirx.reinterpret(f"int32x{lanes}", weight)
        for byte in range(GROUP):
            unsigned = (x >> shift(8 * byte)) & shift(0xFF)
            signed = (w << shift(24 - 8 * byte)) >> shift(24)
            total = total + unsigned * signed
        return total
