"""How the rows of a product are cut: into blocks, one behind the other, and each block into register tiles.

The same arithmetic on integers and on expressions, so that the loop nest, the list of tile heights it
has code for and the estimate cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

Cut = TypeVar("Cut")
FEW_CORES = 2  # for which the usual cuts were measured: they stay as they are
_MOST_ROUNDS = 4  # tasks of a core that are tried: of more, the last round is a small part
_GAIN, _NEAR = 0.9, 1.05  # of a time: what is estimated to save less is left; what counts as equal


@dataclass(frozen=True, kw_only=True)
class RowTiling:
    """Tiles of up to `mr` rows, nearly equal ones if `balance`; blocks of at least `block_rows`, 0: one block.

    Where `few` is given, blocks of up to so many rows have tiles of up to `few_mr`, and all tiles are nearly equal.
    """

    mr: int
    block_rows: int
    cores: int
    balance: bool = True
    few: int = 0
    few_mr: int = 1

    def blocks(self, m: ir.Expr | int) -> ir.Expr | int:
        """Row blocks of at least `block_rows` rows; as many for every core where there are more than cores."""
        if self.block_rows == 0:
            return 1
        whole = m // self.block_rows
        if isinstance(m, int):
            return max(1, whole - whole % self.cores if whole > self.cores else whole)
        even = tirx.if_then_else(whole > self.cores, whole - whole % self.cores, whole)
        return tirx.max(1, even)

    def rows_of(self, m: ir.Expr | int, block: ir.Expr | int, blocks: ir.Expr | int) -> tuple:
        """(first row, number of rows) of a block. Without balance, blocks end where full tiles end."""
        unit = 1 if self.balance else self.mr
        units = (m + (unit - 1)) // unit
        first, end = block * units // blocks * unit, (block + 1) * units // blocks * unit
        return first, _least(m, end) - first

    def tiles(self, height: ir.Expr | int) -> ir.Expr | int:
        """How many tiles a block of `height` rows has."""
        if isinstance(height, int):
            return -(-height // (self.few_mr if height <= self.few else self.mr))
        tiles = tirx.ceildiv(height, self.mr)
        if not self.few:
            return tiles
        return tirx.if_then_else(height <= self.few, tirx.ceildiv(height, self.few_mr), tiles)

    def tile_of(self, height: ir.Expr | int, at: ir.Expr | int, tiles: ir.Expr | int) -> tuple:
        """(first row, number of rows) of tile `at` of a block: all full but the last, or all nearly equal."""
        if not self.balance and not self.few:
            return at * self.mr, _least(height - at * self.mr, self.mr)
        base, extra = height // tiles, height % tiles
        larger = at < extra
        return at * base + _least(at, extra), base + (
            int(larger) if isinstance(larger, bool) else tirx.if_then_else(larger, 1, 0)
        )

    def heights(self, m: int) -> list[int]:
        """Rows of each block, in order."""
        blocks = self.blocks(m)
        return [self.rows_of(m, block, blocks)[1] for block in range(blocks)]

    def tile_heights(self, rows: int) -> list[int]:
        """Rows of each tile of a block of `rows` rows, in order; a block can be empty where tiles are not balanced."""
        tiles = self.tiles(rows)
        return [self.tile_of(rows, at, tiles)[1] for at in range(tiles)]

    def row_counts(self, rows: int | None) -> list[int]:
        """Numbers of rows a tile can have, the most frequent first."""
        if rows is None:
            return list(range(self.mr, 0, -1))
        if rows == 0:
            return [self.mr]
        return sorted({count for height in self.heights(rows) for count in self.tile_heights(height)}, reverse=True)


def block_rows_for(rows: int, panels: int, cores: int, least: int = 1) -> list[int]:
    """Least rows of a block with which row blocks x `panels` are about one to four tasks for each core."""
    counts = {n for each in range(1, _MOST_ROUNDS + 1) for n in (each * cores // panels, -(-each * cores // panels))}
    found = {rows_of for n in counts if 0 < n <= rows for rows_of in (rows // n, -(-rows // n))}
    return sorted({max(least, rows_of) for rows_of in found}, reverse=True)


def slowest_core(tasks: Iterable[float], copies: int, cores: int) -> float:
    """What the slowest of `cores` takes for `copies` of each of `tasks`: it has whole ones, perhaps the longest."""
    tasks = list(tasks)
    return -(-copies * len(tasks) // cores) * max(tasks, default=0.0)


def least_of(usual: Cut, others: Iterable[Cut], cost: Callable[[Cut], float]) -> Cut:
    """`usual`, unless `others` cost clearly less: then the first of them that costs hardly more than the least."""
    costs = {cut: cost(cut) for cut in (usual, *others)}
    least = min(costs.values())
    return usual if least > _GAIN * costs[usual] else next(cut for cut, each in costs.items() if each <= _NEAR * least)


def switch(rows: ir.Expr, counts: Sequence[int], emit: Callable[[int], None]) -> None:
    """if rows == a: emit(a) elif rows == b: emit(b) ..., over the counts that can occur."""
    if len(counts) == 1:
        emit(counts[0])
        return
    with T.If(rows == counts[0]):
        with T.Then():
            emit(counts[0])
        with T.Else():
            switch(rows, counts[1:], emit)


def _least(a: ir.Expr | int, b: ir.Expr | int) -> ir.Expr | int:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.min(a, b)
