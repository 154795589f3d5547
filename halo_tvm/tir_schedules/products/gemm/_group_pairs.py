"""Integers in groups where no instruction multiplies four bytes at once: pairs of 16 bits, as few as can be.

    4 bits    vpmaddubsw on the bytes as they are. Eight such steps fit 16 bits, 8 * 2 * 15 * 127 = 30480: the sums of
              a group of 32 stay there and are widened once, behind the group. Longer ones are widened in every step.
    8 bits    a step takes even and odd k apart, as `WidenedPairs` does; the rows are taken apart in front, once, and
              a step only broadcasts them.

Sums of floats stay in registers where the tile leaves room for them, else in L1: they are touched once a group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import index
from .arithmetic import Operands, Tile, each_row
from .groups import GroupOperands, Groups, four_in_all
from .w8a8 import GROUP, added_pairs, multiply_words

_BRIEF = 32  # k whose products of 4 and 8 bits, in pairs, fit 16 bits
_LOW_BYTES = 0x00FF00FF
_MADD_BYTES = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}


@dataclass(frozen=True)
class _Pairs(Groups):
    """What both have in common: float sums leave the registers to taller tiles."""

    vector_registers: int = 16

    def in_registers(self, rows: int, vectors: int) -> bool:
        return self.registers(rows, vectors) + rows * vectors <= self.vector_registers


@dataclass(frozen=True)
class NibblePairs(_Pairs):
    """Four bits."""

    @property
    def is_brief(self) -> bool:
        return self.length == _BRIEF

    def registers(self, rows: int, vectors: int) -> int:
        # Sums, both halves of the weights, a row, a product, the mask.
        return rows * vectors + 2 * vectors + 3

    def instructions(self, rows: int, vectors: int) -> float:
        adding = 4 if self.is_brief else 6
        return adding * rows * vectors + 3 * vectors + 5 * rows * vectors / self.promoted_every

    def step(self, tile: Tile, k: ir.Expr) -> None:
        lanes = tile.lanes
        mask = tirx.Broadcast(tirx.const(0x0F0F0F0F, "int32"), lanes)
        four = tirx.Broadcast(tirx.const(4, "int32"), lanes)
        for half in range(2):
            for r, (acc,) in enumerate(tile.acc):
                column = k * self.group + half * GROUP
                row = four_in_all(tile.x[tile.start + r, tirx.Ramp(column, index(1), GROUP)], lanes)
                for v in range(tile.vectors):
                    at, word = tile.vector(v), tirx.reinterpret(f"int32x{lanes}", tile.weights(k, v, GROUP))
                    weight = (word >> four if half else word) & mask
                    T.buffer_store(acc, self.add(acc[at], weight, row, lanes), [at])

    def add(self, total: ir.Expr, weight: ir.Expr, row: ir.Expr, lanes: int) -> ir.Expr:
        words = f"int16x{2 * lanes}"
        unsigned = tirx.reinterpret(f"int8x{GROUP * lanes}", weight)
        pairs = tirx.call_llvm_pure_intrin(words, _MADD_BYTES[lanes], unsigned, row)
        if self.is_brief:
            return tirx.reinterpret(f"int32x{lanes}", tirx.reinterpret(words, total) + pairs)
        return total + added_pairs(pairs, lanes)

    def settle(self, tile: Tile) -> None:
        for (acc,) in tile.acc if self.is_brief else ():
            for v in range(tile.vectors):
                at = tile.vector(v)
                T.buffer_store(acc, added_pairs(tirx.reinterpret(f"int16x{2 * tile.lanes}", acc[at]), tile.lanes), [at])

    def first(self, operands: Operands, row: ir.Expr, block: ir.Expr) -> ir.Expr:
        return tirx.const(0, "int32") if self.is_brief else super().first(operands, row, block)

    def promoted(
        self,
        operands: Operands,
        row: ir.Expr,
        block: ir.Expr,
        panel: ir.Expr,
        at: ir.Expr,
        sums: ir.Expr,
        so_far: ir.Expr,
    ) -> ir.Expr:
        assert isinstance(operands, GroupOperands)
        if self.is_brief and not self.has_least:
            sums = sums + operands.start[row, block]
        return super().promoted(operands, row, block, panel, at, sums, so_far)


@dataclass(frozen=True)
class BytePairs(_Pairs):
    """Eight bits. x of the operands: int32 [2, rows, k / 4], the even two of four numbers and the odd ones."""

    def registers(self, rows: int, vectors: int) -> int:
        # Sums, even and odd weights, even and odd numbers of a row, a product; the mask is read from memory.
        return rows * vectors + 2 * vectors + 3

    def instructions(self, rows: int, vectors: int) -> float:
        return 4 * rows * vectors + 2 * vectors + 4 * rows * vectors / self.promoted_every

    def prepare(self, x: ir.Var, rows: ir.Expr, k: int, lanes: int, more: tuple[ir.Var, ...]) -> GroupOperands:
        rounded = super().prepare(x, rows, k, lanes, more)
        pairs = T.alloc_buffer((2, rows, k // GROUP), "int32", align=64)
        width = self.length // GROUP  # words of a group, a multiple of the lanes of any vector or a part of one
        words = f"int16x{2 * width}"
        eight = tirx.Broadcast(tirx.const(8, "int16"), 2 * width)

        def take_apart(row: ir.Expr) -> None:
            with T.serial(index(k // self.length)) as group:
                at = tirx.Ramp(group * self.length, index(1), self.length)
                four = tirx.reinterpret(words, rounded.x[row, at])
                to = tirx.Ramp(group * width, index(1), width)
                for odd, pair in enumerate(((four << eight) >> eight, four >> eight)):
                    T.buffer_store(pairs, tirx.reinterpret(f"int32x{width}", pair), [odd, row, to])

        each_row(rows, k, take_apart)
        return replace(rounded, x=pairs)

    def step(self, tile: Tile, k: ir.Expr) -> None:
        lanes, words = tile.lanes, f"int16x{2 * tile.lanes}"
        low = tirx.Broadcast(tirx.const(_LOW_BYTES, "int32"), lanes)
        eight = tirx.Broadcast(tirx.const(8, "uint16"), 2 * lanes)
        for r, (acc,) in enumerate(tile.acc):
            for odd in range(2):
                pair = tirx.reinterpret(words, tirx.Broadcast(tile.x[odd, tile.start + r, k], lanes))
                for v in range(tile.vectors):
                    at, stored = tile.vector(v), tile.weights(k, v, GROUP)
                    if odd:
                        weight = tirx.reinterpret(words, tirx.reinterpret(f"uint16x{2 * lanes}", stored) >> eight)
                    else:
                        weight = tirx.reinterpret(words, tirx.reinterpret(f"int32x{lanes}", stored) & low)
                    T.buffer_store(acc, acc[at] + multiply_words(weight, pair, lanes), [at])
