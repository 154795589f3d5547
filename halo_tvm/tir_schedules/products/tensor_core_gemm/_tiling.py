"""How a product is cut: what a cut costs in registers and shared memory, and which cuts can be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....targets import WARP
from .._product import Product
from ._rounding import rounds_first
from ._shared import SharedTile

if TYPE_CHECKING:
    from ....targets.gpu_levels import GpuLevel

MMA_M, MMA_N, MMA_K = 16, 8, 16
_WARP_N = 16  # columns of one ldmatrix of the weight
_OWN_REGISTERS = 48  # of a thread for addresses and loops, beside sums and fragments
_MOST_SUMS = 128  # registers of a thread

BLOCK_M, BLOCK_N, BLOCK_K = (16, 32, 64, 128, 256), (32, 64, 128, 256), (32, 64)
WARPS, STAGES = (1, 2, 4, 8), (2, 3, 4)


@dataclass(frozen=True)
class Tiling:
    """A block of threads makes [block_m, block_n] of the result, each of its warps [warp_m, warp_n] of that."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    x_dtype: str  # as it is copied
    weight_dtype: str
    by_column: bool

    @classmethod
    def of(cls, product: Product, block_m: int, block_n: int, block_k: int, warps: int, stages: int) -> Tiling:
        x_dtype = product.weight_dtype if rounds_first(product) else product.x_dtype
        return cls(block_m, block_n, block_k, warps, stages, x_dtype, product.weight_dtype, product.by_column)

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def warp_grid(self) -> tuple[int, int] | None:
        """Warps along m and n, so that a warp's tile is as square as can be; None: no such grid."""
        grids = [
            (rows, self.warps // rows)
            for rows in range(1, self.warps + 1)
            if self.warps % rows == 0
            and self.block_m % (rows * MMA_M) == 0
            and self.block_n % (self.warps // rows * _WARP_N) == 0
        ]
        return min(grids, key=lambda g: self.block_m // g[0] + self.block_n // g[1], default=None)

    @property
    def warp_tile(self) -> tuple[int, int]:
        """Rows and columns of a warp."""
        assert self.warp_grid is not None, f"no grid of warps for {self}"
        return self.block_m // self.warp_grid[0], self.block_n // self.warp_grid[1]

    @property
    def x_tile(self) -> SharedTile:
        return SharedTile(self.block_m, self.block_k, self.x_dtype)

    @property
    def weight_tile(self) -> SharedTile:
        shape = (self.block_n, self.block_k) if self.by_column else (self.block_k, self.block_n)
        return SharedTile(*shape, self.weight_dtype)

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.x_tile.size_bytes + self.weight_tile.size_bytes)

    @property
    def registers(self) -> int:
        """Of a thread, about: sums, fragments of two steps, addresses."""
        m, n = self.warp_tile
        fragments = m // MMA_M * 4 + n // MMA_N * 2
        return m * n // WARP + 2 * fragments + _OWN_REGISTERS

    def refusal(self, gpu: GpuLevel) -> str:
        """Why `gpu` cannot run it; empty when it can."""
        if self.warp_grid is None:
            return f"{self.warps} warps cannot share {self.block_m} x {self.block_n} in tiles of {MMA_M} x {_WARP_N}"
        m, n = self.warp_tile
        if m * n // WARP > _MOST_SUMS:
            return f"{m * n // WARP} sums of a thread do not stay in registers"
        if self.shared_bytes > gpu.shared_bytes_per_block:
            return f"{self.shared_bytes} bytes of shared memory, a block has {gpu.shared_bytes_per_block}"
        return ""

    def resident(self, gpu: GpuLevel) -> int:
        """Blocks that a multiprocessor holds."""
        registers = min(self.registers, gpu.registers_per_thread)
        return gpu.resident_blocks(self.threads, registers, self.shared_bytes)


def tilings(product: Product, gpu: GpuLevel) -> Iterator[Tiling]:
    """Every cut worth trying: no taller or wider than the result asks for, and one that fits."""
    rows = product.rows
    for m, n, k, warps, stages in itertools.product(BLOCK_M, BLOCK_N, BLOCK_K, WARPS, STAGES):
        taller = rows is not None and m >= 2 * max(rows, MMA_M)
        wider, deeper = n >= 2 * max(product.n, BLOCK_N[0]), k > max(product.k, BLOCK_K[0])
        tiling = Tiling.of(product, m, n, k, warps, stages)
        if not (taller or wider or deeper) and not tiling.refusal(gpu) and tiling.resident(gpu):
            yield tiling


def copy_width(leading: int, tile: SharedTile) -> int:
    """Elements that one copy moves: `leading` is the length of a row of the matrix, whose parts keep aligned."""
    return math.gcd(leading, tile.piece)
