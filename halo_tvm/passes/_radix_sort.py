"""Where the elements of rows stand in order: by comparing each with each in short rows, by digits in others.

    few elements      eight rows side by side, each in a lane      a comparison for each pair of elements
    some              one row, elements in lanes                   likewise
    many              one row                                      a step for each digit of each element

A merge sort's comparisons go either way, which no processor foresees: 64 rows of 1,000 numbers took 6.1 ms, by digits
0.47. An element's digits need no comparison, only a place in one of 256 lists each; those that all elements share (of
small integers, of halves) are passed over. Of few elements the lists take longer than vectors of comparisons do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tvm import ir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..heaps import each_of, rank, rank_bits

_DIGIT = 8  # bits
_SHORT = {32: 128, 64: 64}  # elements of a row that are compared each with each, by bits of their ranks
_FEW, _LANES = 32, 8  # elements of rows that are sorted side by side, and how many rows are


def places_in_order(x: te.Tensor, *, descending: bool) -> list[te.Tensor]:
    """x [rows, n] -> int64 [rows, n]: places of each row's elements in order, of equal ones the first first.

    Behind it stands what the kernel works in: places [rows, 2, n] and ranks [rows, n]. NaN is the largest number.
    """
    rows, n = x.shape
    ranks = f"int{rank_bits(str(x.dtype))}"
    made: list[te.Tensor] = te.extern(
        [(rows, n), (rows, 2, n), (rows, n)],
        [x],
        partial(_sorted, descending=descending),
        dtype=["int64", "int32", ranks],
        name="argsort",
    )
    return made


def _sorted(ins: list[tirx.Buffer], outs: list[tirx.Buffer], descending: bool) -> tirx.Stmt:
    data, order, sides, keys = map(T.buffer_proxy, (*ins, *outs))
    (rows, n), bits = ins[0].shape, rank_bits(str(ins[0].dtype))
    key = partial(rank, descending=not descending)  # the smaller, the earlier: ranks the other way round

    def one(r: ir.Expr) -> None:
        row = _Row(order, sides, keys, r, n, bits)
        with T.serial(0, n) as i:
            keys[r, i] = key(data[r, i])
        if isinstance(n, tirx.IntImm):
            row.sort_short() if row.is_short else row.sort_long()
        else:
            with T.If(row.is_short):
                with T.Then():
                    row.sort_short()
                with T.Else():
                    row.sort_long()

    with IRBuilder() as ib:
        if isinstance(n, tirx.IntImm) and int(n) <= _FEW:
            with T.parallel(0, tirx.floordiv(rows + _LANES - 1, _LANES)) as block:
                with T.If(block * _LANES + _LANES <= rows):
                    with T.Then():
                        _side_by_side(data, order, key, block * _LANES, int(n), bits)
                    with T.Else(), T.serial(0, rows - block * _LANES) as r:
                        one(block * _LANES + r)
        else:
            with each_of(rows) as r:
                one(r)
        return ib.get()


def _side_by_side(
    data: T.buffer_proxy, order: T.buffer_proxy, key: Callable[[ir.Expr], ir.Expr], first: ir.Expr, n: int, bits: int
) -> None:
    """The rows from `first` on, one in each lane: an element's place is the number of those that come before it."""
    keys, before = _local(n, _LANES, dtype=f"int{bits}"), _local(n, _LANES)
    with T.serial(0, _LANES) as lane, T.serial(0, n) as i:
        keys[i, lane] = key(data[first + lane, i])
        before[i, lane] = i.astype("int32")  # all in front, until one is found to come later
    with T.serial(0, n) as j, T.serial(0, j) as i, T.vectorized(0, _LANES) as lane:
        is_later = (keys[j, lane] < keys[i, lane]).astype("int32")
        before[i, lane] = before[i, lane] + is_later
        before[j, lane] = before[j, lane] - is_later
    with T.serial(0, _LANES) as lane, T.serial(0, n) as i:
        order[first + lane, before[i, lane]] = i.astype("int64")


@dataclass(frozen=True)
class _Row:
    """Row r, whose keys are there: the smaller, the earlier. The methods emit statements."""

    order: T.buffer_proxy
    sides: T.buffer_proxy
    keys: T.buffer_proxy
    r: tirx.Var
    n: ir.Expr
    bits: int

    @property
    def is_short(self) -> bool | ir.Expr:
        limit = _SHORT[self.bits]
        return int(self.n) <= limit if isinstance(self.n, tirx.IntImm) else self.n <= limit

    def sort_short(self) -> None:
        """An element's place is the number of those that come before it."""
        r, n, keys, before = self.r, self.n, self.keys, self.sides
        found = _local(1)
        with T.serial(0, n) as i:
            before[r, 0, i] = tirx.const(0, "int32")
        with T.serial(0, n) as j:
            rest = n - 1 - j
            found[0] = tirx.const(0, "int32")
            with T.serial(0, rest) as i:  # LLVM makes vectors of it
                is_first = (keys[r, j] <= keys[r, j + 1 + i]).astype("int32")
                before[r, 0, j + 1 + i] = before[r, 0, j + 1 + i] + is_first
                found[0] = found[0] + is_first
            before[r, 0, j] = before[r, 0, j] + rest.astype("int32") - found[0]
        with T.serial(0, n) as i:
            self.order[r, before[r, 0, i]] = i.astype("int64")

    def sort_long(self) -> None:
        """Lists of equal digits, from the last digit on, one behind the other: each pass keeps the order before it."""
        r, n, sides = self.r, self.n, self.sides
        digits = self.bits // _DIGIT
        counts, side = _local(digits, 1 << _DIGIT), _local(1)
        with T.serial(0, digits) as d, T.serial(0, 1 << _DIGIT) as value:
            counts[d, value] = tirx.const(0, "int32")
        with T.serial(0, n) as i:
            sides[r, 0, i] = i.astype("int32")
            for d in range(digits):
                digit = self._digit(i, d)
                counts[d, digit] = counts[d, digit] + 1
        side[0] = tirx.const(0, "int32")
        for d in range(digits):
            with T.If(counts[d, self._digit(0, d)].astype("int64") < n), T.Then():
                self._pass(d, counts, side)
        with T.serial(0, n) as i:
            self.order[r, i] = sides[r, side[0], i].astype("int64")

    def _pass(self, d: int, counts: T.buffer_proxy, side: T.buffer_proxy) -> None:
        begin, size, place, digit = (_local(1) for _ in range(4))
        begin[0] = tirx.const(0, "int32")
        with T.serial(0, 1 << _DIGIT) as value:
            size[0] = counts[d, value]
            counts[d, value] = begin[0]
            begin[0] = begin[0] + size[0]
        with T.serial(0, self.n) as i:
            place[0] = self.sides[self.r, side[0], i]
            digit[0] = self._digit(place[0], d)
            self.sides[self.r, 1 - side[0], counts[d, digit[0]]] = place[0]
            counts[d, digit[0]] = counts[d, digit[0]] + 1
        side[0] = 1 - side[0]

    def _digit(self, place: ir.Expr | int, d: int) -> ir.Expr:
        key = self.keys[self.r, place]
        if d == self.bits // _DIGIT - 1:  # the sign is in it
            key = tirx.bitwise_xor(key, tirx.const(-(1 << self.bits - 1), f"int{self.bits}"))
        shifted = tirx.shift_right(key, tirx.const(d * _DIGIT, f"int{self.bits}"))
        return tirx.bitwise_and(shifted, tirx.const((1 << _DIGIT) - 1, f"int{self.bits}")).astype("int32")


def _local(*shape: int, dtype: str = "int32") -> T.buffer_proxy:
    return T.buffer_proxy(T.alloc_buffer(shape, dtype, scope="local"))
