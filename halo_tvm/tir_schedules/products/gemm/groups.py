"""float32 times integers of eight or four bits in groups along k: rows are rounded by groups, sums scaled by groups.

In front of the products each group of a row becomes bytes of -127 to 127, its largest magnitude over 127 their scale.
Products of a group are summed in int32, from minus the weight's zero times the sum of the row's integers on: that
takes the zero out again. Then one conversion and a multiply-add bring the sum to the float32 sums of the row:
    sums += float32(integers) * (scale of the row's group * scale of the column's group)
and, with least values, sums += (scale of the row * sum of its integers) * least value of the column.
The weight is the unsigned side of byte products, the row the signed one, as vpdpbusd has it. Four bits are masked out
of the bytes of one load for two steps of four k. `_group_pairs` is for where no instruction multiplies four bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import index
from .arithmetic import Arithmetic, Operands, Tile, each_row
from .w8a8 import GROUP, W8A8

ZERO = {8: 128, 4: 8}  # the integer of a weight that means 0, without least values
_LARGEST = 127.0
_TINY = 1e-20  # least magnitude of a group: what it is divided by is finite
_LOW_HALVES = 0x0F0F0F0F
_MAGNITUDE = 0x7FFFFFFF  # the bits of a float32 but its sign


@dataclass(frozen=True)
class GroupOperands(Operands):
    """What is made of x by groups: [rows, k / length] each, beside the tensors of the weight."""

    row_scale: ir.Var  # float32
    start: ir.Var  # int32: what the sums of a group begin with
    row_sum: ir.Var | None  # float32: the sum of a group's rounded numbers, for least values
    scale: ir.Var  # float16 [panels, k / length, nr]
    least: ir.Var | None

    def scaled(
        self,
        row: ir.Expr,
        group: ir.Expr,
        sums: ir.Expr,
        so_far: ir.Expr,
        column: ir.Expr,
        least: ir.Expr | None,
        lanes: int = 1,
    ) -> ir.Expr:
        """`so_far` and the `sums` of a group by the scales of row and `column`, and its `least` value; all float32."""

        def of_row(buffer: ir.Var) -> ir.Expr:
            value = buffer[row, group]
            return value if lanes == 1 else tirx.Broadcast(value, lanes)

        found = so_far + sums * (of_row(self.row_scale) * column)
        if least is None:
            return found
        assert self.row_sum is not None
        return found + of_row(self.row_sum) * least


@dataclass(frozen=True)
class Groups(Arithmetic):
    """One kind of byte product, for integers of `bits` in groups of `length`."""

    product: W8A8
    bits: int
    length: int = 32
    has_least: bool = False

    op: ClassVar[str] = "linear_groups"
    padding: ClassVar[int] = 0  # bytes behind each row of integers
    dtypes: ClassVar[tuple[str, str, str]] = ("float32", "uint8", "float32")

    @property
    def group(self) -> int:  # type: ignore[override]
        return 32 // self.bits

    @property
    def unroll(self) -> int:  # type: ignore[override]
        return 4 if self.product.unroll > 1 else 1

    @property
    def promoted_every(self) -> int:  # type: ignore[override]
        return self.length // self.group

    @property
    def sums(self) -> str:
        return "int32"

    def of(self, length: int, has_least: bool) -> Groups:
        return replace(self, length=length, has_least=has_least)

    def in_registers(self, rows: int, vectors: int) -> bool:
        return True

    def registers(self, rows: int, vectors: int) -> int:
        """Float sums beside those of integers; the bytes of four bits beside their halves."""
        return self.product.registers(rows, vectors) + rows * vectors + (7 if self.bits == 4 else 0)

    def instructions(self, rows: int, vectors: int) -> float:
        steps = 8 // self.bits
        unpacking = 3 * vectors if self.bits == 4 else 0
        scaling = 4 * rows * vectors / self.promoted_every
        return steps * self.product.instructions(rows, vectors) + unpacking + scaling

    def prepare(self, x: ir.Var, rows: ir.Expr, k: int, lanes: int, more: tuple[ir.Var, ...]) -> GroupOperands:
        """Emit what rounds the rows, in parallel."""
        groups = k // self.length
        integers = T.alloc_buffer((rows, k + self.padding), "int8", align=64)
        scale = T.alloc_buffer((rows, groups), "float32")
        start = T.alloc_buffer((rows, groups), "int32")
        total = T.alloc_buffer((rows, groups), "float32") if self.has_least else None
        parts = self.length // lanes

        def round_row(row: ir.Expr) -> None:
            with T.serial(index(groups)) as group:

                def part(p: int) -> ir.Expr:
                    return tirx.Ramp(group * self.length + p * lanes, index(1), lanes)

                known = T.alloc_buffer((2,), "float32")  # the largest magnitude, then what brings it to 127
                T.buffer_store(known, _largest([x[row, part(p)] for p in range(parts)], lanes), [0])
                T.buffer_store(scale, known[0] / _float(_LARGEST), [row, group])
                T.buffer_store(known, _float(_LARGEST) / known[0], [1])
                rounded = [T.alloc_buffer((lanes,), "int32") for _ in range(parts)]
                lane = tirx.Ramp(index(0), index(1), lanes)
                for p, buffer in enumerate(rounded):
                    number = tirx.nearbyint(x[row, part(p)] * tirx.Broadcast(known[1], lanes))
                    T.buffer_store(buffer, tirx.Cast(f"int32x{lanes}", number), [lane])
                    T.buffer_store(integers, tirx.Cast(f"int8x{lanes}", buffer[lane]), [row, part(p)])
                added = _folded([buffer[lane] for buffer in rounded], tirx.Add)
                count = T.alloc_buffer((1,), "int32")
                T.buffer_store(count, tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.add", added), [0])
                T.buffer_store(
                    start, count[0] * tirx.const(0 if self.has_least else -ZERO[self.bits], "int32"), [row, group]
                )
                if total is not None:
                    T.buffer_store(total, tirx.Cast("float32", count[0]) * scale[row, group], [row, group])

        each_row(rows, k, round_row)
        weight_scale, *least = more
        return GroupOperands(integers, None, scale, start, total, weight_scale, least[0] if least else None)

    def step(self, tile: Tile, k: ir.Expr) -> None:
        lanes = tile.lanes
        for v in range(tile.vectors):
            at, word = tile.vector(v), tirx.reinterpret(f"int32x{lanes}", tile.weights(k, v, GROUP))
            for r, (acc,) in enumerate(tile.acc):
                for half in range(8 // self.bits):
                    column = k * self.group + half * GROUP
                    row = four_in_all(tile.x[tile.start + r, tirx.Ramp(column, index(1), GROUP)], lanes)
                    T.buffer_store(acc, self.add(acc[at], self._bytes(word, half, lanes), row, lanes), [at])

    def add(self, total: ir.Expr, weight: ir.Expr, row: ir.Expr, lanes: int) -> ir.Expr:
        """int32 sums + four unsigned bytes of the weight in each int32 * four signed bytes of the row."""
        return self.product.add(total, weight, row, lanes)

    def _bytes(self, word: ir.Expr, half: int, lanes: int) -> ir.Expr:
        if self.bits == 8:
            return word
        mask = tirx.Broadcast(tirx.const(_LOW_HALVES, "int32"), lanes)
        return (word >> tirx.Broadcast(tirx.const(4, "int32"), lanes) if half else word) & mask

    def first(self, operands: Operands, row: ir.Expr, block: ir.Expr) -> ir.Expr:
        assert isinstance(operands, GroupOperands)
        return operands.start[row, block]

    def promoted(
        self,
        operands: Operands,
        row: ir.Expr,
        block: ir.Expr,
        panel: ir.Expr,
        at: ir.Expr,
        sums: ir.Expr,
        so_far: ir.Expr,
    ) -> ir.Expr:
        assert isinstance(operands, GroupOperands)
        column = tirx.Cast("float32", operands.scale[panel, block, at])
        least = None if operands.least is None else tirx.Cast("float32", operands.least[panel, block, at])
        return operands.scaled(row, block, tirx.Cast("float32", sums), so_far, column, least)


def _largest(values: list[ir.Expr], lanes: int) -> ir.Expr:
    """The largest magnitude, of groups of zeros a tiny one; NaN where there is one.

    As integers: magnitudes are in the order of their bits, and a maximum of floats spends five instructions on NaN.
    """
    rest = tirx.Broadcast(tirx.const(_MAGNITUDE, "int32"), lanes)
    bits = [tirx.reinterpret(f"int32x{lanes}", value) & rest for value in values]
    largest = tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.smax", _folded(bits, tirx.max))
    return tirx.reinterpret("float32", tirx.max(largest, tirx.reinterpret("int32", _float(_TINY))))


def _folded(values: list[ir.Expr], combine: object) -> ir.Expr:
    first, *rest = values
    for value in rest:
        first = combine(first, value)  # type: ignore[operator]
    return first


def four_in_all(four: ir.Expr, lanes: int) -> ir.Expr:
    """The same four numbers of a row in every lane."""
    return tirx.reinterpret(f"int8x{GROUP * lanes}", tirx.Broadcast(tirx.reinterpret("int32", four), lanes))


def _float(value: float) -> ir.Expr:
    return tirx.const(value, "float32")
