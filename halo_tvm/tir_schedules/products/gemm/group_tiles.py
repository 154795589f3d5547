"""Integers in groups in AMX's registers, of two groups at a time, which vectors scale and add.

A task takes its panel apart first, once for all of its rows: bytes without their zero, four bits as bytes.
    for each pair of groups, for each 16 rows:
        16 x 48 sums of int32 of either group                  three products each, stored in L1
        sums += float32(integers) * (scale of the row's group * scale of the column's group)
The integers and the order of the float32 sums are those of vectors: a row's result depends on no other row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import index
from ...code.tile_registers import ROWS, Band, Matrix, Product, configure, in_bands, keep_whole, sum_up
from .amx import InTiles, prefetch_panel
from .arithmetic import Unpacked
from .groups import ZERO, GroupOperands, Groups
from .w8a8 import GROUP

if TYPE_CHECKING:
    from .chain import Chain
    from .tile import Pass
    from .tiling import Tiling

_AT_ONCE = 2  # groups: float32 sums are loaded and stored half as often
_LOW_HALVES, _SIGNS = 0x0F0F0F0F, -0x7F7F7F80


@dataclass(frozen=True)
class GroupTiles(InTiles, Groups):
    """Integers of `bits` in groups of `length`; few rows in vectors."""

    instruction = "tdpbssd"
    few_block_rows = 12  # taking the panel apart, and storing tiles, takes longer than the products of so many
    padding: ClassVar[int] = 64  # rows of 4096 bytes would share their place in L1

    @property
    def few_rows(self) -> int:  # type: ignore[override]
        return 4 if self.bits == 8 else 3

    def of(self, length: int, has_least: bool) -> Groups:
        """Bytes of eight bits are signed without their zero; with least values, which no scheme has, in vectors."""
        if has_least and self.bits == 8:
            return Groups(self.product, self.bits, length, has_least)
        return super().of(length, has_least)

    def lines_ahead(self, unroll: int) -> int:
        return 8

    def instructions(self, rows: int, vectors: int) -> float:
        """A product takes a cycle for each of its rows, whether a group fills the register or not."""
        groups = self.group / self.length  # of a step
        products = -(-self.length // (GROUP * ROWS))
        return (products + (4 if self.has_least else 3)) * rows * vectors * groups

    def loads(self, rows: int, vectors: int) -> float:
        return super().loads(rows, vectors) * self.group / GROUP + 3 * rows * vectors * self.group / self.length

    def unpack(self, chain: Chain, t: Tiling, panel: ir.Expr, rows: ir.Expr) -> Unpacked | None:
        """Few rows need none of it."""
        if chain.rows is not None and chain.rows <= t.few:
            return None
        halves, width = 8 // self.bits, GROUP * t.lanes
        weight = T.alloc_buffer((chain.parts, chain.kc // GROUP, chain.nr * GROUP), "int8", align=64)
        integers = T.alloc_buffer((_AT_ONCE, ROWS, chain.nr), "int32", align=64)
        with T.If(rows > t.few), T.Then():
            for part in range(chain.parts):
                with T.serial(index(chain.steps)) as step:
                    for v, half in itertools.product(range(0, chain.nr, t.lanes), range(halves)):
                        stored = chain.weight[0, panel + part * chain.panels, step, v, _ramp(0, width)]
                        word = tirx.reinterpret(f"int32x{t.lanes}", stored)
                        place = [part, step * halves + half, _ramp(GROUP * v, width)]
                        T.buffer_store(weight, self._signed(word, half, t.lanes), place)
        return Unpacked(weight, integers)

    def _signed(self, word: ir.Expr, half: int, lanes: int) -> ir.Expr:
        """The bytes of words without their zero, which least values have not."""

        def all_lanes(value: int) -> ir.Expr:
            return tirx.Broadcast(tirx.const(value, "int32"), lanes)

        dtype = f"int8x{GROUP * lanes}"
        if self.bits == 8:
            return tirx.reinterpret(dtype, word ^ all_lanes(_SIGNS))
        bytes_ = tirx.reinterpret(dtype, (word >> all_lanes(4) if half else word) & all_lanes(_LOW_HALVES))
        return bytes_ if self.has_least else bytes_ - tirx.Broadcast(tirx.const(ZERO[4], "int8"), GROUP * lanes)

    def tile(self, chain: Chain, t: Tiling, p: Pass, rows: ir.Expr, heights: Sequence[int], continued: bool) -> None:
        operands, unpacked = p.operands, p.unpacked
        assert isinstance(operands, GroupOperands) and unpacked is not None and not continued
        whole, rest = divmod(chain.kc // self.length, _AT_ONCE)
        of_groups = _Emitter(self, chain.nr, t.lanes, p, operands, unpacked)

        def of(band: Band) -> None:
            configure(band.height, min(self.length // GROUP, ROWS))
            of_groups.clear(rows)
            if whole:
                with T.serial(index(whole)) as run:
                    prefetch_panel(chain, t, p, run)
                    of_groups.add(rows, band, run * _AT_ONCE, _AT_ONCE)
            if rest:
                of_groups.add(rows, band, index(whole * _AT_ONCE), rest)

        in_bands(rows, heights, of)
        keep_whole(operands.x, unpacked.weight, unpacked.integers)


@dataclass(frozen=True)
class _Emitter:
    """The products of one tile."""

    arithmetic: GroupTiles
    nr: int
    lanes: int
    at: Pass
    operands: GroupOperands
    unpacked: Unpacked

    def clear(self, rows: ir.Expr) -> None:
        zero = tirx.Broadcast(tirx.const(0, self.arithmetic.total), self.lanes)
        with T.serial(rows) as r, T.serial(index(self.nr // self.lanes)) as v:
            T.buffer_store(self.at.scratch, zero, [r, self._column(v * self.lanes)])

    def add(self, rows: ir.Expr, band: Band, first: ir.Expr, count: int) -> None:
        """scratch[:rows] += the products of `count` groups from `first` on."""
        scale = self._of_columns(self.operands.scale, first, count)
        least = None if self.operands.least is None else self._of_columns(self.operands.least, first, count)
        registers = max(1, self.arithmetic.length // (GROUP * ROWS))
        for above, top in enumerate(band.tops):
            sum_up([self._product(top, first + g, g) for g in range(count)], (0, registers), continued=False)
            # Of an odd number of rows the middle one is in both.
            begin, end = (band.height, rows) if above else (0, band.height)
            with T.serial(end - begin) as i:
                self._scale(begin + i, begin + i - top, first, scale, least)

    def _product(self, top: ir.Expr | int, group: ir.Expr, which: int) -> Product:
        """Rows of the tile from `top` on times one group, into integers[which]."""
        length, (weight, integers, part) = self.arithmetic.length, self.unpacked
        x, first = self.operands.x, self.at.start + top
        return Product(
            self.arithmetic.instruction,
            x=Matrix(lambda row, step: x[first + row, group * length + step * GROUP], int(x.ty.shape[1])),
            weight=Matrix(
                lambda step, column: weight[part, group * (length // GROUP) + step, GROUP * column], GROUP * self.nr
            ),
            sums=Matrix(lambda row, column: integers[which, row, column], 4 * self.nr),
            steps=length // GROUP,
            columns=self.nr,
        )

    def _of_columns(self, stored: ir.Var, first: ir.Expr, count: int) -> list[ir.Var]:
        """float32 [nr] of the float16 of each of `count` groups: few enough for registers."""
        kept = []
        for g in range(count):
            kept.append(T.alloc_buffer((self.nr,), "float32"))
            for v in range(0, self.nr, self.lanes):
                value = tirx.Cast(f"float32x{self.lanes}", stored[self.at.panel, first + g, _ramp(v, self.lanes)])
                T.buffer_store(kept[g], value, [_ramp(v, self.lanes)])
        return kept

    def _scale(
        self, row: ir.Expr, above: ir.Expr, first: ir.Expr, scale: list[ir.Var], least: list[ir.Var] | None
    ) -> None:
        """scratch[row] += row number `above` of the integers of the groups from `first` on, by their scales."""
        lanes, of_x = self.lanes, self.at.start + row
        for v in range(0, self.nr, lanes):
            column, place = _ramp(v, lanes), [row, self._column(v)]
            total = self.at.scratch[tuple(place)]
            for g in range(len(scale)):
                sums = tirx.Cast(f"float32x{lanes}", self.unpacked.integers[g, above, column])
                low = None if least is None else least[g][column]
                total = self.operands.scaled(of_x, first + g, sums, total, scale[g][column], low, lanes)
            T.buffer_store(self.at.scratch, total, place)

    def _column(self, v: ir.Expr | int) -> ir.Expr:
        return tirx.Ramp(self.at.column + v, index(1), self.lanes)


def _ramp(start: int, lanes: int) -> ir.Expr:
    return tirx.Ramp(index(start), index(1), lanes)
