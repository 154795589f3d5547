"""uint8 times int8 into int32 on ARM: an instruction adds four products to each of four sums.

    usdot  bytes without a sign times bytes with one, as vpdpbusd; by a lane of the row it is called sudot
    sdot   both with a sign: x - 128, which is x with its highest bit turned, times w. The sums of a column begin with
           128 times what its weights add up to

Both take the four bytes that all lanes share from one lane of a register: a row's bytes of four steps are loaded at
once. A load that broadcasts would take, beside its own, a place of the products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .arithmetic import Operands, Tile
from .groups import Groups
from .w8a8 import GROUP, W8A8, word_in_all, words_of

_WORDS = 4  # of a register: the steps whose bytes of a row it holds
_HIGHEST_BITS = -0x7F7F7F80  # of the four bytes of a word; as bytes with a sign, -128 each
_USDOT, _SDOT = "llvm.aarch64.neon.usdot.v4i32.v16i8", "llvm.aarch64.neon.sdot.v4i32.v16i8"


@dataclass(frozen=True)
class LaneDots(W8A8):
    """What both have in common: the words of a row stay in a register for some steps."""

    def registers(self, rows: int, vectors: int) -> int:
        # Sums, weights, rows, what a step computes with.
        return rows * vectors + vectors + rows + 1

    def instructions(self, rows: int, vectors: int) -> float:
        return rows * vectors

    def loads(self, rows: int, vectors: int) -> float:
        return rows / _WORDS + vectors

    def steps(self, tile: Tile, first: ir.Expr, count: int) -> None:
        width = math.gcd(count, _WORDS)
        for begin in range(0, count, width):
            at = (first + begin) * GROUP
            rows = [tirx.reinterpret(words_of(width), tile.of_x(r, at, GROUP * width)) for r in range(len(tile.acc))]
            rows = [T.bind(self.of_row(words, width)) for words in rows]
            for step in range(width):
                self._step(tile, first + (begin + step), [_in_all_lanes(words, step, width) for words in rows])

    def _step(self, tile: Tile, k: ir.Expr, rows: Sequence[ir.Expr]) -> None:
        for v in range(tile.vectors):
            at, weight = tile.vector(v), tile.weights(k, v, GROUP)
            for (acc,), x in zip(tile.acc, rows):
                T.buffer_store(acc, self.dot(acc[at], x, weight), [at])

    def of_row(self, words: ir.Expr, count: int) -> ir.Expr:
        """`count` words of a row as the instruction takes them."""
        return words

    def dot(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr) -> ir.Expr:
        """int32 sums + x, as `of_row` gives it, * weight."""
        raise AssertionError(f"{type(self).__name__} lacks dot")


@dataclass(frozen=True)
class MixedDots(LaneDots):
    """usdot."""

    def dot(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr) -> ir.Expr:
        return _call(_USDOT, total, x, weight)

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        return self.dot(total, x, weight)


@dataclass(frozen=True)
class SignedDots(LaneDots):
    """sdot."""

    begins = True
    few = 4  # a panel that is read twice for fewer rows takes longer than one more product a step

    def registers(self, rows: int, vectors: int) -> int:
        # The highest bits, too.
        return super().registers(rows, vectors) + 1

    def of_row(self, words: ir.Expr, count: int) -> ir.Expr:
        return words ^ word_in_all(_HIGHEST_BITS, count)

    def dot(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr) -> ir.Expr:
        return _call(_SDOT, total, weight, x)  # it takes a lane of the last one only

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        """Of sums that began without a look at their columns."""
        beside = self.dot(word_in_all(0, lanes), word_in_all(_HIGHEST_BITS, lanes), weight)
        return self.dot(total, self.of_row(x, lanes), weight) - beside

    def steps(self, tile: Tile, first: ir.Expr, count: int) -> None:
        super().steps(tile, first, count)
        if tile.beside is not None:
            for k in range(count):
                self._add_columns(tile, first + k, tile.beside)

    def settle(self, tile: Tile) -> None:
        if tile.beside is None:
            return
        for v, (acc,) in itertools.product(range(tile.vectors), tile.acc):
            at = tile.vector(v)
            T.buffer_store(acc, acc[at] - tile.beside[at], [at])

    def beginnings(self, tile: Tile, steps: int, found: ir.Var, first: ir.Expr | int) -> None:
        sums = T.alloc_buffer((tile.nr,), "int32", align=64)
        vectors = [(v * tile.lanes, tile.vector(v)) for v in range(tile.vectors)]
        zero = word_in_all(0, tile.lanes)
        for _, at in vectors:
            T.buffer_store(sums, zero, [at])
        with T.serial(tirx.IntImm("int64", steps)) as k:
            self._add_columns(tile, k, sums)
        for column, at in vectors:
            T.buffer_store(found, zero - sums[at], [tirx.Ramp(first + column, 1, tile.lanes)])

    def _add_columns(self, tile: Tile, k: ir.Expr, sums: ir.Var) -> None:
        """sums -= 128 times what the weights of step `k` add up to."""
        for v in range(tile.vectors):
            at, highest = tile.vector(v), word_in_all(_HIGHEST_BITS, tile.lanes)
            T.buffer_store(sums, self.dot(sums[at], highest, tile.weights(k, v, GROUP)), [at])


@dataclass(frozen=True)
class SignedGroups(Groups):
    """Integers in groups by sdot: four bits have no sign to lose; eight, less 128, are without their zero."""

    product: SignedDots

    def of(self, length: int, has_least: bool) -> Groups:
        """With least values, which no scheme has, eight bits keep what is 128 too much."""
        if has_least and self.bits == 8:
            return Groups(self.product, self.bits, length, has_least)
        return super().of(length, has_least)

    def add(self, total: ir.Expr, weight: ir.Expr, row: ir.Expr, lanes: int) -> ir.Expr:
        return self.product.dot(total, self.product.of_row(weight, lanes) if self.bits == 8 else weight, row)

    def first(self, operands: Operands, row: ir.Expr, block: ir.Expr) -> ir.Expr:
        return tirx.const(0, self.sums) if self.bits == 8 else super().first(operands, row, block)


def _in_all_lanes(words: ir.Expr, which: int, count: int) -> ir.Expr:
    if count == 1:
        return tirx.Broadcast(words, _WORDS)
    # TVM takes no more lanes than it is given.
    return tirx.Shuffle([words] * -(-_WORDS // count), [tirx.IntImm("int32", which)] * _WORDS)


def _call(name: str, total: ir.Expr, x: ir.Expr, weight: ir.Expr) -> ir.Expr:
    dtype = f"int8x{GROUP * _WORDS}"
    return tirx.call_llvm_pure_intrin(
        f"int32x{_WORDS}", name, total, *(tirx.reinterpret(dtype, v) for v in (x, weight))
    )
