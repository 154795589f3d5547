"""float32 times float32: one fused multiply-add per vector of sums."""

from __future__ import annotations

from tvm import ir
from tvm.script.ir_builder import tirx as T

from ...code.nests import vectors
from .arithmetic import Arithmetic, Tile


class Float32(Arithmetic):
    """Sums, one row of weights and one broadcast value are in registers at once."""

    dtypes = ("float32", "float32", "float32")

    splits = True

    def registers(self, rows: int, vectors: int) -> int:
        return rows * vectors + vectors + 1

    def instructions(self, rows: int, vectors: int) -> float:
        return rows * vectors

    def step(self, tile: Tile, k: ir.Expr) -> None:
        for r, (acc,) in enumerate(tile.acc):
            with vectors(tile.nr, tile.lanes) as at:
                product = tile.of_x(r, k) * tile.of_weight(k, at)
                T.buffer_store(acc, acc[at] + product, [at])

    def add(self, total: ir.Expr, x: ir.Expr, weight: ir.Expr, lanes: int) -> ir.Expr:
        """Sums + x * weight, each a vector."""
        return total + x * weight
