"""float32 times bfloat16 into float32: weights of half the bytes, two k of a column side by side in 32 bits.

Where nothing multiplies bfloat16, a shift gives the even weight as float32 and a mask the odd one: no conversion,
and sums as exact as those of float32. vdpbf16ps takes both pairs as they are, and adds two products to each sum: x
is rounded to bfloat16 for it, once in front of all products.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code import pair_dot
from .arithmetic import Arithmetic, Operands, Tile, each_row, part_at, parts_of

GROUP = 2
_FEW_SUMS = 4  # the latency of a multiply-add: two dependent ones a step would take twice as long
_HIGH_HALF = -(1 << 16)  # 0xffff0000
_SHARED_FROM = 1 << 16  # elements of x: rounding fewer is done before the other threads have woken
_ROUNDING = """
define internal <{lanes} x i32> @halo_round_{lanes}(<{pairs} x float> %x) alwaysinline nounwind {{
  %rounded = fptrunc <{pairs} x float> %x to <{pairs} x bfloat>
  %bits = bitcast <{pairs} x bfloat> %rounded to <{lanes} x i32>
  ret <{lanes} x i32> %bits
}}
define internal i32 @halo_round_1(<2 x float> %x) alwaysinline nounwind {{
  %rounded = fptrunc <2 x float> %x to <2 x bfloat>
  %bits = bitcast <2 x bfloat> %rounded to i32
  ret i32 %bits
}}
"""
# Where code calls `rounded`, or multiplies pairs, an attribute of the key pair_dot.PRAGMA holds it.
TEXT = pair_dot.TEXT + _ROUNDING.format(lanes=pair_dot.LANES, pairs=2 * pair_dot.LANES)


def rounded(values: ir.Expr, words: int) -> ir.Expr:
    """Twice as many floats as words of two bfloat16, the even one in the low half, to nearest even."""
    kind = f"int32x{words}" if words > 1 else "int32"
    return tirx.call_pure_extern(kind, f"halo_round_{words}", values)


class BFloat16Weights(Arithmetic):
    """Sums, the even and the odd weights of a step, and one broadcast value are in registers at once."""

    dtypes = ("float32", "bfloat16", "float32")
    group = GROUP
    splits = True
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
                    at = tile.vector(v)
                    bits = tirx.reinterpret(f"int32x{lanes}", tile.weights(k, v, GROUP))
                    bits = bits & high if odd else bits << sixteen
                    T.buffer_store(acc, acc[at] + x * tirx.reinterpret(f"float32x{lanes}", bits), [at])


class BFloat16Pairs(Arithmetic):
    """One instruction for two products; rows rounded to nearest even are made in front of them."""

    dtypes = ("float32", "bfloat16", "float32")
    group = GROUP
    words = True
    splits = True

    def registers(self, rows: int, vectors: int) -> int:
        return rows * vectors + vectors + 1

    def instructions(self, rows: int, vectors: int) -> float:
        return rows * vectors * (2 if self._apart(rows, vectors) else 1)

    @staticmethod
    def _apart(rows: int, vectors: int) -> bool:
        """Few sums would wait for each other's products; those of a step, added up, only wait for the addition."""
        return rows * vectors < pair_dot.LATENCY

    def prepare(self, x: ir.Var, rows: ir.Expr, k: int, lanes: int, more: tuple[ir.Var, ...]) -> Operands:
        """Emit what makes x in bfloat16: int32 [rows, k / 2], the even k in the low half."""
        assert lanes == pair_dot.LANES, f"pairs are written for {pair_dot.LANES} lanes, found {lanes}"
        pairs = T.alloc_buffer((rows, k // GROUP), "int32", align=64)

        def round_row(row: ir.Expr) -> None:
            for width, first, count in parts_of(k // GROUP, lanes):
                with T.serial(tirx.IntImm("int64", count)) as v:
                    words = rounded(x[row, part_at(GROUP * first, v, GROUP * width)], width)
                    T.buffer_store(pairs, words, [row, part_at(first, v, width)])

        with T.attr(0, pair_dot.PRAGMA, TEXT):
            each_row(rows, k, round_row, _SHARED_FROM)
        return Operands(pairs, None)

    def step(self, tile: Tile, k: ir.Expr) -> None:
        lanes = tile.lanes
        apart = self._apart(len(tile.acc), tile.vectors)
        for r, (acc,) in enumerate(tile.acc):
            x = tirx.Broadcast(tile.of_words(r, k, GROUP), lanes)
            for v in range(tile.vectors):
                at = tile.vector(v)
                begin = tirx.Broadcast(tirx.const(0, "float32"), lanes) if apart else acc[at]
                total = self.add(begin, x, tile.weights(k, v, GROUP), lanes)
                T.buffer_store(acc, acc[at] + total if apart else total, [at])

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        """Sums + x (two bfloat16 in each int32) * weight (bfloat16, two for each sum)."""
        pairs = tirx.reinterpret(f"int32x{lanes}", weight)
        return tirx.call_pure_extern(f"float32x{lanes}", pair_dot.NAME, total, x, pairs)
