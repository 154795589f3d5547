"""uint8 times int8 into int32: four consecutive k a step, in the widest form the instruction set has.

    vpdpbusd    four byte products added to each sum by one instruction
    vpmaddwd    bytes widened to 16 bits, even and odd k apart: two products of each added, then two additions.
                vpmaddubsw would take the bytes as they are, but saturates at 16 bits: never
    plain       one multiplication and one addition a product

The integers are the same in every form, so the results are, whatever the order of the sum.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .arithmetic import Arithmetic, Operands, Tile, each_row, part_at, parts_of

GROUP = 4
_EVEN_BYTES = 0x00FF00FF
_BOTH = (0, 1)  # the even bytes, the odd ones
_FEW_SUMS = 4  # so many vectors leave registers to products of both halves
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
                at = tile.vector(v)
                T.buffer_store(acc, self.add(acc[at], x, tile.weights(k, v, GROUP), tile.lanes), [at])

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
    """16-bit products of even bytes and of odd bytes: both land in the sum of their own column.

    x of the operands: int32 [2, rows, k / 4], the even two of four bytes and the odd ones, taken apart once. A tall
    tile walks along k twice, for the ones and for the others: LLVM would keep the products of both until it adds them.
    """

    unroll = 2  # of longer iterations LLVM mixes the steps and runs out of registers
    takes_apart = True

    def registers(self, rows: int, vectors: int) -> int:
        # Sums, weights, a row, a product.
        return rows * vectors + vectors + 2

    def instructions(self, rows: int, vectors: int) -> float:
        return 4 * rows * vectors + 3 * vectors

    def walks(self, rows: int, vectors: int) -> tuple[int | None, ...]:
        return (None,) if rows * vectors <= _FEW_SUMS else _BOTH

    def prepare(self, x: ir.Var, rows: ir.Expr, k: int, lanes: int, more: tuple[ir.Var, ...]) -> Operands:
        pairs = T.alloc_buffer((2, rows, k // GROUP), "int32", align=64)

        def take_apart(row: ir.Expr) -> None:
            for width, first, count in parts_of(k // GROUP, lanes):
                with T.serial(tirx.IntImm("int64", count)) as v:
                    four = tirx.reinterpret(words_of(width), x[row, part_at(GROUP * first, v, GROUP * width)])
                    for odd, pair in enumerate(taken_apart(four, width)):
                        T.buffer_store(pairs, pair, [odd, row, part_at(first, v, width)])

        each_row(rows, k, take_apart)
        return Operands(pairs, None)

    def step(self, tile: Tile, k: ir.Expr) -> None:
        lanes = tile.lanes
        for half, (r, (acc,)) in itertools.product(_BOTH if tile.half is None else (tile.half,), enumerate(tile.acc)):
            pair = tirx.reinterpret(f"int16x{2 * lanes}", tirx.Broadcast(tile.of_pairs(r, half, k), lanes))
            for v in range(tile.vectors):
                at = tile.vector(v)
                weight = self._half(tile.weights(k, v, GROUP), half, lanes)
                T.buffer_store(acc, acc[at] + multiply_words(pair, weight, lanes), [at])

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        for odd, pair in enumerate(taken_apart(x, lanes)):
            half = tirx.reinterpret(f"int16x{2 * lanes}", pair)
            total = total + multiply_words(half, self._half(weight, odd, lanes), lanes)
        return total

    def _half(self, weight: ir.Expr, odd: int, lanes: int) -> ir.Expr:
        """The even or the odd bytes of a weight, widened."""
        w, eight = tirx.reinterpret(f"int16x{2 * lanes}", weight), tirx.Broadcast(tirx.const(8, "int16"), 2 * lanes)
        return w >> eight if odd else (w << eight) >> eight


def taken_apart(four: ir.Expr, width: int) -> tuple[ir.Expr, ir.Expr]:
    """`width` words of four uint8 as words of two int16: the even bytes, the odd ones."""
    mask, eight = word_in_all(_EVEN_BYTES, width), word_in_all(8, width)
    return four & mask, (four >> eight) & mask


def multiply_words(x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
    """int16 products of x and of the weight, two neighbours added up in each lane of int32."""
    return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _MADD[lanes], x, weight)


def added_pairs(words: ir.Expr, lanes: int) -> ir.Expr:
    """Two neighbours of int16 added up in each lane of int32."""
    return multiply_words(words, tirx.Broadcast(tirx.const(1, "int16"), 2 * lanes), lanes)


def word_in_all(value: int, width: int) -> ir.Expr:
    """`value` in so many words."""
    word = tirx.const(value, "int32")
    return tirx.Broadcast(word, width) if width > 1 else word


def words_of(width: int) -> str:
    """The type of so many words."""
    return f"int32x{width}" if width > 1 else "int32"


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
