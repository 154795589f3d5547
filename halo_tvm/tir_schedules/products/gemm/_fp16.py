"""float32 times float16 into float32: in half arithmetic where there is some, else widened in registers.

Half arithmetic has twice the lanes, and 11 bits. What keeps it right:
    x is rounded row by row, divided by a power of two that brings the row's largest magnitude under one: no row
    overflows, whatever its size (nor a sum: params.LARGEST_FP16), and the sums are multiplied back in float32
    half sums run over 96 k only, and are added to float32 sums in L1 then
Every rounded x is stored twice in 32 bits: a broadcast of 32 bits needs no shuffle, one of 16 does, on the port where
half of the multiply-adds run.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .arithmetic import Arithmetic, Operands, Tile, part_at, parts_of

_TWICE = (1 << 16) + 1
_EXPONENT = 0x7F800000  # of a float32
_MOST = 2.0**120  # rows beyond it become infinite in half, as do infinite ones
_LEAST = 1e-30  # magnitude that a row of zeros is divided by: the quotients stay finite


class HalfWeights(Arithmetic):
    """Weights of half the bytes, arithmetic of float32."""

    dtypes = ("float32", "float16", "float32")
    unroll = 2
    splits = True

    def registers(self, rows: int, vectors: int) -> int:
        return rows * vectors + vectors + 1

    def instructions(self, rows: int, vectors: int) -> float:
        return rows * vectors + vectors

    def step(self, tile: Tile, k: ir.Expr) -> None:
        column = tile.chunk * tile.kc + k
        for r, (acc,) in enumerate(tile.acc):
            x = tirx.Broadcast(tile.x[tile.start + r, column], tile.lanes)
            for v in range(tile.vectors):
                at = tile.vector(v)
                weight = tirx.Cast(f"float32x{tile.lanes}", tile.of_weight(k, at))
                T.buffer_store(acc, acc[at] + x * weight, [at])


class HalfArithmetic(Arithmetic):
    """Twice the lanes; rounded rows and their scales are made in front of the products."""

    dtypes = ("float32", "float16", "float32")
    lane_factor = 2
    promoted_every = 96

    @property
    def sums(self) -> str:
        return "float16"

    def registers(self, rows: int, vectors: int) -> int:
        return rows * vectors + vectors + 1

    def instructions(self, rows: int, vectors: int) -> float:
        return rows * vectors

    def prepare(self, x: ir.Var, rows: ir.Expr, k: int, lanes: int, more: tuple[ir.Var, ...]) -> Operands:
        """Emit what makes (rounded x, twice in each int32 [rows, k]; the power of two each row was divided by)."""
        twice = T.alloc_buffer((rows, k), "int32", align=64)
        scale = T.alloc_buffer((rows,), "float32")
        with T.parallel(rows) as row:
            largest = T.alloc_buffer((lanes,), "float32")
            with T.vectorized(tirx.IntImm("int64", lanes)) as lane:
                T.buffer_store(largest, _float(_LEAST), [lane])
            for width, first, count in parts_of(k, lanes):
                found = tirx.Ramp(0, 1, width) if width > 1 else 0
                with T.serial(tirx.IntImm("int64", count)) as v:
                    value = tirx.max(largest[found], tirx.abs(x[row, part_at(first, v, width)]))
                    T.buffer_store(largest, value, [found])
            known = T.alloc_buffer((2,), "float32")  # largest magnitude, then the factor that brings it under one
            T.buffer_store(known, largest[0], [0])
            with T.serial(lanes) as lane:
                T.buffer_store(known, tirx.max(known[0], largest[lane]), [0])
            # The exponent of the largest magnitude alone: dividing by a power of two loses nothing.
            bits = tirx.reinterpret("int32", tirx.min(known[0], _float(_MOST))) & tirx.const(_EXPONENT, "int32")
            T.buffer_store(scale, tirx.reinterpret("float32", bits) * _float(2.0), [row])
            T.buffer_store(known, _float(1.0) / scale[row], [1])
            for width, first, count in parts_of(k, lanes):
                with T.serial(tirx.IntImm("int64", count)) as v:
                    at = part_at(first, v, width)
                    half = tirx.Cast(_vector("float16", width), x[row, at] * _broadcast(known[1], width))
                    bits = tirx.Cast(_vector("int32", width), tirx.reinterpret(_vector("uint16", width), half))
                    T.buffer_store(twice, bits * _broadcast(tirx.const(_TWICE, "int32"), width), [row, at])
        return Operands(twice, scale)

    def step(self, tile: Tile, k: ir.Expr) -> None:
        column, lanes = tile.chunk * tile.kc + k, tile.lanes
        for r, (acc,) in enumerate(tile.acc):
            pair = tirx.Broadcast(tile.x[tile.start + r, column], lanes // 2)
            x = tirx.reinterpret(f"float16x{lanes}", pair)
            for v in range(tile.vectors):
                at = tile.vector(v)
                T.buffer_store(acc, acc[at] + x * tile.of_weight(k, at), [at])


def _float(value: float) -> ir.Expr:
    return tirx.const(value, "float32")


def _vector(dtype: str, width: int) -> str:
    return f"{dtype}x{width}" if width > 1 else dtype


def _broadcast(value: ir.Expr, width: int) -> ir.Expr:
    return tirx.Broadcast(value, width) if width > 1 else value
