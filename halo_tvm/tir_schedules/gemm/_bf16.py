"""float32 times bfloat16 into float32: weights of half the bytes, unpacked in registers.

A step takes two k. Their weights lie side by side in 32 bits, so a shift gives the even one as float32 and a mask
the odd one: no conversion, and sums as exact as those of float32.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ._arithmetic import Arithmetic, Tile

GROUP = 2
_FEW_SUMS = 4  # the latency of a multiply-add: two dependent ones a step would take twice as long
_HIGH_HALF = -(1 << 16)  # 0xffff0000


class BFloat16Weights(Arithmetic):
    """Sums, the even and the odd weights of a step, and one broadcast value are in registers at once."""

    dtypes = ("float32", "bfloat16", "float32")
    group = GROUP
    unroll = 1  # a step is two k already; LLVM mixes the steps of a longer iteration and runs out of registers

    def registers(self, rows: int, vectors: int) -> int:
        return rows * vectors + 2 * vectors + 1

    def instructions(self, rows: int, vectors: int) -> float:
        return GROUP * (rows * vectors + vectors)

    def chains(self, rows: int, vectors: int) -> int:
        return GROUP if rows * vectors <= _FEW_SUMS else 1

    def step(self, tile: Tile, k: ir.Expr) -> None:
        column, lanes = tile.chunk * tile.kc + k * GROUP, tile.lanes
        sixteen = tirx.Broadcast(tirx.const(16, "int32"), lanes)
        high = tirx.Broadcast(tirx.const(_HIGH_HALF, "int32"), lanes)
        # The even k of every row, then the odd: so one half of the unpacked weights is in registers at a time.
        for odd in range(GROUP):
            for r, sums in enumerate(tile.acc):
                acc = sums[odd % len(sums)]
                x = tirx.Broadcast(tile.x[tile.start + r, column + odd], lanes)
                for v in range(tile.vectors):
                    at = tirx.Ramp(v * lanes, 1, lanes)
                    pairs = tile.weight[tile.chunk, tile.panel, k, v * lanes, tirx.Ramp(0, 1, GROUP * lanes)]
                    bits = tirx.reinterpret(f"int32x{lanes}", pairs)
                    bits = bits & high if odd else bits << sixteen
                    T.buffer_store(acc, acc[at] + x * tirx.reinterpret(f"float32x{lanes}", bits), [at])
