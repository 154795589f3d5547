"""uint8 times int8 into int32 on AVX2 where most sums of two products fit 16 bits.

    vpmaddubsw  two byte products added in 16 bits, which saturates: 255 * (127 + 127) = 64770
    vpmaddwd    by ones: two such sums added in 32 bits

A step of a panel is marked where two neighbouring weights of one sign are beyond 128 together: then some row may
saturate. A task looks at its panel first, and mends the sums of marked steps behind its k loop: the integers are exact,
whatever the weights. A step takes 30 instructions for 5 rows of 16 columns, 46 with bytes that are widened; mending one
takes 70.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .arithmetic import Marks, Tile
from .w8a8 import GROUP, W8A8, WidenedPairs

NARROW = "halo.narrow_pairs"  # annotation of a block whose weight has few marked steps
LARGEST = 128  # two weights of one sign are at most that together: 255 * 128 < 2**15
_HALVES = (0x00FF, -0x0100)  # of words: the even bytes, the odd ones
_HIGH_BYTES = -0x55555556  # of a mask with a bit for each byte, those of the upper ones of words
_MADD_BYTES, _MADD_WORDS, _SIGNS = "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx2.pmovmskb"


def marked_share(packed: np.ndarray) -> float:
    """Of the steps of a weight [chunks, panels, k / 4, nr, 4], the share that is marked."""
    pairs = packed.reshape(*packed.shape[:-1], 2, 2)
    beyond = np.zeros(pairs.shape[:-1], bool)
    for sign in (np.minimum, np.maximum):
        beyond |= np.abs(sign(pairs, 0).sum(-1, dtype=np.int16)) > LARGEST
    return float(beyond.any((-1, -2)).mean()) if beyond.size else 0.0


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

    def look(self, tile: Tile, runs: int, steps: int) -> Marks:
        """The marked steps of the panel in their order, as runs of `steps` are walked one after another."""
        found = T.alloc_buffer((runs * steps,), "int32", align=64)
        ends = T.alloc_buffer((runs + 1,), "int32", align=64)
        count = T.alloc_buffer((1,), "int32", align=64)
        T.buffer_store(count, tirx.const(0, "int32"), [0])
        T.buffer_store(ends, tirx.const(0, "int32"), [0])
        with T.serial(tirx.IntImm("int64", runs)) as run:
            with T.serial(tirx.IntImm("int64", steps)) as k:
                T.buffer_store(found, k.astype("int32"), [count[0]])
                T.buffer_store(count, count[0] + self._is_marked(tile, run * steps + k), [0])
            T.buffer_store(ends, count[0], [run + 1])
        return Marks(found, ends)

    def _is_marked(self, tile: Tile, k: ir.Expr) -> ir.Expr:
        """1 for a step that some row may saturate, else 0."""
        lanes, bits = tile.lanes, 2 * tile.lanes
        most = tirx.Broadcast(tirx.const(-1, "int8"), GROUP * lanes)  # 255 of each

        def word(value: int) -> ir.Expr:
            return tirx.Broadcast(tirx.const(value, "int16"), bits)

        def negative_where_saturated(v: int) -> ir.Expr:
            sums = self._pairs(most, self._weight(tile, k, v), lanes)
            return (sums ^ (sums >> word(15))) + word(1)  # 2**15 - 1 and -2**15 alone become -2**15

        found = functools.reduce(lambda a, b: a | b, map(negative_where_saturated, range(tile.vectors)))
        signs = tirx.call_llvm_pure_intrin("int32", _SIGNS, tirx.reinterpret(f"int8x{GROUP * lanes}", found))
        some = (signs & tirx.const(_HIGH_BYTES, "int32")) != 0
        return tirx.Select(some, tirx.const(1, "int32"), tirx.const(0, "int32"))

    def step(self, tile: Tile, k: ir.Expr) -> None:
        for r, v, x, weight in self._operands(tile, k):
            self._add(tile, r, v, self._pairs(x, weight, tile.lanes))

    def mend(self, tile: Tile, run: ir.Expr | int) -> None:
        """Of marked steps add what the sums of two products have lost by saturation, which fits 16 bits."""
        assert tile.marks is not None, "the panel has been looked at"
        first = tile.marks.ends[run]
        with T.serial(tile.marks.ends[run + 1] - first) as i:
            k = tile.marks.steps[first + i].astype("int64")
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
                yield r, v, x, self._weight(tile, k, v)

    def _pairs(self, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        return tirx.call_llvm_pure_intrin(f"int16x{2 * lanes}", _MADD_BYTES, x, weight)

    def _masked(self, weight: ir.Expr, half: int, lanes: int) -> ir.Expr:
        words = tirx.reinterpret(f"int16x{2 * lanes}", weight)
        words = words & tirx.Broadcast(tirx.const(half, "int16"), 2 * lanes)
        return tirx.reinterpret(f"int8x{GROUP * lanes}", words)

    def _add(self, tile: Tile, r: int, v: int, pairs: ir.Expr) -> None:
        (acc,), lanes = tile.acc[r], tile.lanes
        ones = tirx.Broadcast(tirx.const(1, "int16"), 2 * lanes)
        at = tirx.Ramp(v * lanes, 1, lanes)
        T.buffer_store(acc, acc[at] + tirx.call_llvm_pure_intrin(f"int32x{lanes}", _MADD_WORDS, pairs, ones), [at])

    def _weight(self, tile: Tile, k: ir.Expr, v: int) -> ir.Expr:
        return tile.of_weight(k, v * tile.lanes, tirx.Ramp(0, 1, GROUP * tile.lanes))
