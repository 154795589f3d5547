"""int16 times int16 into int32: two consecutive k a step, by vpmaddwd, which is exact."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .arithmetic import Arithmetic, Tile
from .w8a8 import multiply_words

PAIR = 2


class WordPairs(Arithmetic):
    """Two neighbours of a row, broadcast as one word, times two of each column, side by side in the weight."""

    dtypes = ("int16", "int16", "int32")
    group = PAIR
    unroll = 2  # of longer iterations LLVM mixes the steps and runs out of registers

    def registers(self, rows: int, vectors: int) -> int:
        # Sums, weights, a row, a product.
        return rows * vectors + vectors + 2

    def instructions(self, rows: int, vectors: int) -> float:
        return 2 * rows * vectors

    def step(self, tile: Tile, k: ir.Expr) -> None:
        lanes = tile.lanes
        for r, (acc,) in enumerate(tile.acc):
            word = tirx.reinterpret("int32", tile.of_x(r, k * PAIR, PAIR))
            pair = tirx.reinterpret(f"int16x{PAIR * lanes}", tirx.Broadcast(word, lanes))
            for v in range(tile.vectors):
                at = tile.vector(v)
                T.buffer_store(acc, acc[at] + multiply_words(pair, tile.weights(k, v, PAIR), lanes), [at])
