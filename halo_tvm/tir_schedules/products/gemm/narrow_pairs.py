"""uint8 times int8 into int32 on AVX2 where most sums of two products fit 16 bits.

    vpmaddubsw  two byte products added in 16 bits, which saturates: 255 * (127 + 127) = 64770
    vpmaddwd    by ones: two such sums added in 32 bits

A step of a panel is marked where two neighbouring weights of one sign are beyond 128 together: then some row may
saturate. A step of a row is marked where two neighbours are beyond 256 together: then a weight may. Behind its k loop
a tile mends the sums of the steps that are marked in its panel and in one of its rows: the integers are exact, whatever
the numbers. A step takes 30 instructions for 5 rows of 16 columns, 46 with widened bytes; mending one takes 70.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .arithmetic import Operands, Tile, each_row, part_at, parts_of
from .w8a8 import GROUP, W8A8, WidenedPairs, added_pairs, taken_apart, word_in_all, words_of

NARROW = "halo.narrow_pairs"  # annotation of a block whose weight has few marked steps
LARGEST = 128  # two weights of one sign are at most that together: 255 * 128 < 2**15
_TO_BIT_9 = 0x00FF00FF  # brings 257 and more, in each half of a word, to that bit: 256 * 128 = 2**15
_MARKS_AT_ONCE = 8  # steps, whose marks are one word
_HALVES = (0x00FF, -0x0100)  # of words: the even bytes, the odd ones
_HIGH_BYTES = -0x55555556  # of a mask with a bit for each byte, those of the upper ones of words
_TRAILING_ZEROS = "llvm.cttz"
_MADD_BYTES, _SIGNS = "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmovmskb"


def marked_share(packed: np.ndarray) -> float:
    """Of the steps of a weight [chunks, panels, k / 4, nr, 4], the share that is marked."""
    pairs = packed.reshape(*packed.shape[:-1], 2, 2)
    beyond = np.zeros(pairs.shape[:-1], bool)
    for sign in (np.minimum, np.maximum):
        beyond |= np.abs(sign(pairs, 0).sum(-1, dtype=np.int16)) > LARGEST
    return float(beyond.any((-1, -2)).mean()) if beyond.size else 0.0


def mark_row(
    x: tuple[ir.Var, tuple[ir.Expr, ...]], marks: tuple[ir.Var, tuple[ir.Expr, ...]], k: int, lanes: int
) -> None:
    """Emit the marks of `k` bytes, each of both a buffer and where its row is: 1 for four of which two may saturate."""
    for width, first, count in parts_of(k // GROUP, lanes):
        add, nine, more, one = (word_in_all(value, width) for value in (_TO_BIT_9, 9, 25, 1))
        with T.serial(tirx.IntImm("int64", count)) as v:
            four = x[0][(*x[1], part_at(GROUP * first, v, GROUP * width))]
            even, odd = taken_apart(tirx.reinterpret(words_of(width), four), width)
            beyond = even + odd + add
            mark = ((beyond >> nine) | (beyond >> more)) & one
            mark = tirx.Cast(f"uint8x{width}" if width > 1 else "uint8", mark)
            T.buffer_store(marks[0], mark, [*marks[1], part_at(first, v, width)])


@dataclass(frozen=True)
class NarrowPairs(W8A8):
    """Two products added in 16 bits, four in 32."""

    unroll = 1

    @staticmethod
    def serves(vector_bits: int, byte_dot: str) -> bool:
        return byte_dot == "vpmaddwd" and vector_bits == 256

    def registers(self, rows: int, vectors: int) -> int:
        # Sums, weights, a row, a product, ones.
        return rows * vectors + vectors + 3

    def instructions(self, rows: int, vectors: int) -> float:
        return 3 * rows * vectors

    def prepare(self, x: ir.Var, rows: ir.Expr, k: int, lanes: int, more: tuple[ir.Var, ...]) -> Operands:
        marks = T.alloc_buffer((rows, k // GROUP), "uint8", align=64)
        each_row(rows, k, lambda row: mark_row((x, (row,)), (marks, (row,)), k, lanes))
        return Operands(x, None, marks=marks)

    def look(self, tile: Tile, steps: int) -> ir.Var:
        marks = T.alloc_buffer((steps,), "uint8", align=64)
        with T.serial(tirx.IntImm("int64", steps)) as k:
            T.buffer_store(marks, self._is_marked(tile, k), [k])
        return marks

    def _is_marked(self, tile: Tile, k: ir.Expr) -> ir.Expr:
        """1 for a step that some row may saturate, else 0."""
        lanes, bits = tile.lanes, 2 * tile.lanes
        most = tirx.Broadcast(tirx.const(-1, "int8"), GROUP * lanes)  # 255 of each

        def word(value: int) -> ir.Expr:
            return tirx.Broadcast(tirx.const(value, "int16"), bits)

        def negative_where_saturated(v: int) -> ir.Expr:
            sums = self._pairs(most, tile.weights(k, v, GROUP), lanes)
            return (sums ^ (sums >> word(15))) + word(1)  # 2**15 - 1 and -2**15 alone become -2**15

        found = functools.reduce(lambda a, b: a | b, map(negative_where_saturated, range(tile.vectors)))
        signs = tirx.call_llvm_pure_intrin("int32", _SIGNS, tirx.reinterpret(f"int8x{GROUP * lanes}", found))
        some = (signs & tirx.const(_HIGH_BYTES, "int32")) != 0
        return tirx.Select(some, tirx.const(1, "uint8"), tirx.const(0, "uint8"))

    def step(self, tile: Tile, k: ir.Expr) -> None:
        for r, v, x, weight in self._operands(tile, k):
            self._add(tile, r, v, self._pairs(x, weight, tile.lanes))

    def mend(self, tile: Tile, first: ir.Expr | int) -> None:
        """Of steps that are marked in the panel and in a row add what the sums of two products have lost."""
        assert tile.marks is not None, "the panel has been looked at"
        steps = tile.kc // GROUP
        width = math.gcd(steps, _MARKS_AT_ONCE)
        word = f"uint{8 * width}"
        left = T.alloc_buffer((1,), word)  # marks of steps that are still to be mended
        with T.serial(tirx.IntImm("int64", steps // width)) as w:
            of_rows = [tirx.reinterpret(word, tile.of_marks(r, w * width, width)) for r in range(len(tile.acc))]
            at = first + w * width
            of_panel = tirx.reinterpret(word, tile.marks[at if width == 1 else tirx.Ramp(at, 1, width)])
            T.buffer_store(left, functools.reduce(lambda a, b: a | b, of_rows) & of_panel, [0])
            with T.While(left[0] != tirx.const(0, word)):
                lowest = tirx.call_llvm_pure_intrin(word, _TRAILING_ZEROS, left[0], tirx.const(False, "bool"))
                k = T.bind(w * width + (lowest >> tirx.const(3, word)).astype("int64"))
                T.buffer_store(left, left[0] & (left[0] - tirx.const(1, word)), [0])
                self._mend_step(tile, k)

    def _mend_step(self, tile: Tile, k: ir.Expr) -> None:
        """Add what the sums of two products have lost by saturation, which fits 16 bits."""
        for r, v, x, weight in self._operands(tile, k):
            even, odd = (self._pairs(x, self._masked(weight, half, tile.lanes), tile.lanes) for half in _HALVES)
            self._add(tile, r, v, even + odd - self._pairs(x, weight, tile.lanes))

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        """Without a look at the weight."""
        return WidenedPairs().add(total, x, weight, lanes)

    def _operands(self, tile: Tile, k: ir.Expr) -> Iterator[tuple[int, int, ir.Expr, ir.Expr]]:
        """(row, vector, bytes of x in all lanes, bytes of the weight) of one step."""
        for r in range(len(tile.acc)):
            four = tirx.reinterpret("int32", tile.of_x(r, k * GROUP, GROUP))
            x = tirx.reinterpret(f"int8x{GROUP * tile.lanes}", tirx.Broadcast(four, tile.lanes))
            for v in range(tile.vectors):
                yield r, v, x, tile.weights(k, v, GROUP)

    def _pairs(self, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        return tirx.call_llvm_pure_intrin(f"int16x{2 * lanes}", _MADD_BYTES, x, weight)

    def _masked(self, weight: ir.Expr, half: int, lanes: int) -> ir.Expr:
        words = tirx.reinterpret(f"int16x{2 * lanes}", weight)
        words = words & tirx.Broadcast(tirx.const(half, "int16"), 2 * lanes)
        return tirx.reinterpret(f"int8x{GROUP * lanes}", words)

    def _add(self, tile: Tile, r: int, v: int, pairs: ir.Expr) -> None:
        (acc,), at = tile.acc[r], tile.vector(v)
        T.buffer_store(acc, acc[at] + added_pairs(pairs, tile.lanes), [at])
