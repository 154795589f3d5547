"""Numbers of eight transforms side by side in the lanes of vectors: from memory, and back to it.

Rows      each transform is a row, whose numbers follow one another: tiles of 8 x 8 elements are turned in registers
Columns   neighbours in memory belong to neighbouring transforms: vectors are read as they lie
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...register_tiles import turned
from .fourier_transform import Transform

LANES = 8
DTYPE = "float32"
Vector = tuple[ir.Expr, ir.Expr]  # real and imaginary parts of a number of eight transforms


class Planes:
    """Numbers of eight transforms in memory, number k at the place k: all real parts, then all imaginary ones."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.memory = T.buffer_proxy(T.alloc_buffer((2 * count * LANES,), DTYPE, scope="global"))

    def _place(self, k: ir.Expr | int, part: int) -> ir.Expr:
        return tirx.Ramp((whole_number(k) + part * self.count) * LANES, 1, LANES)

    def part(self, k: ir.Expr | int, part: int) -> ir.Expr:
        return self.memory[self._place(k, part)]

    def put_part(self, k: ir.Expr | int, part: int, value: ir.Expr) -> None:
        self.memory[self._place(k, part)] = value

    def get(self, k: ir.Expr | int) -> Vector:
        return bound(self.part(k, 0)), bound(self.part(k, 1))

    def put(self, k: ir.Expr | int, value: Vector) -> None:
        for part in (0, 1):
            self.put_part(k, part, value[part])


class Lanes(ABC):
    """Where the elements of eight transforms are read and written. `sides` says in which plane a part lies."""

    def __init__(self, transform: Transform) -> None:
        self.t = transform
        self.sides = (1, 0) if transform.inverse else (0, 1)

    def load(self, to: Planes) -> None:
        """All elements that are used, and zeros for the others."""
        t = self.t
        elements = t.used * t.parts
        in_pairs = t.parts == 2 or t.is_halved  # two elements make a number
        size = t.numbers + 1 if t.results == 1 and t.is_halved else t.numbers
        self._read(to, elements)
        if in_pairs and elements % 2:  # an odd number of real ones
            to.put_part(elements // 2, self.sides[1], zeros())
        first = -(-elements // 2) if in_pairs else elements
        if first < size:
            with T.serial(0, size - first) as i:
                to.put(i + first, (zeros(), zeros()))
        if not in_pairs:
            with T.serial(0, first) as i:
                to.put_part(i, self.sides[1], zeros())

    @abstractmethod
    def _read(self, to: Planes, elements: int) -> None:
        """The first `elements` of each transform."""

    @abstractmethod
    def store(self, source: Planes) -> None:
        """All results; those of an inverse transform divided by its length."""

    def _put(self, to: Planes, place: ir.Expr | int, i: int, value: ir.Expr) -> None:
        """Element `place` + i, of an even place."""
        if self.t.parts == 2 or self.t.is_halved:
            to.put_part(half_of(place) + i // 2, self.sides[i % 2], value)
        else:
            to.put_part(whole_number(place) + i, self.sides[0], value)

    def _result(self, source: Planes, place: ir.Expr | int, i: int) -> ir.Expr:
        """Element `place` + i of the results, of an even place."""
        if self.t.results == 2 or self.t.is_halved:
            value = source.part(half_of(place) + i // 2, self.sides[i % 2])
        else:
            value = source.part(whole_number(place) + i, self.sides[0])
        return value * tirx.Broadcast(T.float32(1 / self.t.length), LANES) if self.t.inverse else value


class Rows(Lanes):
    """x [rows, given * parts] and out [rows, outputs * results]; behind the last row there is the last one again."""

    def __init__(self, x: Any, out: Any, block: ir.Expr, transform: Transform) -> None:
        super().__init__(transform)
        self.x, self.out = x, out
        last = x.shape[0] - 1
        self.rows = [tirx.min(block * LANES + lane, last) for lane in range(LANES)]

    def _read(self, to: Planes, elements: int) -> None:
        whole = elements // LANES
        if whole:
            with T.serial(0, whole) as block:
                column = bound(block * LANES)
                for i, value in enumerate(_turned([self.x[row, tirx.Ramp(column, 1, LANES)] for row in self.rows])):
                    self._put(to, column, i, value)
        for i in range(elements - whole * LANES):
            lanes = [self.x[row, whole * LANES + i] for row in self.rows]
            self._put(to, whole * LANES, i, _shuffled(lanes, range(LANES)))

    def store(self, source: Planes) -> None:
        total = self.t.outputs * self.t.results
        whole = total // LANES
        if whole:
            with T.serial(0, whole) as block:
                column = bound(block * LANES)
                lanes = _turned([self._result(source, column, i) for i in range(LANES)])
                for row, value in zip(self.rows, lanes):
                    self.out[row, tirx.Ramp(column, 1, LANES)] = value
        if total > whole * LANES:
            spare = T.buffer_proxy(T.alloc_buffer((LANES,), DTYPE, scope="local"))
            for i in range(total - whole * LANES):
                spare[tirx.Ramp(0, 1, LANES)] = self._result(source, whole * LANES, i)
                for lane, row in enumerate(self.rows):
                    self.out[row, whole * LANES + i] = spare[lane]


class Columns(Lanes):
    """x [outer, given, inner * parts] and out [outer, outputs, inner * results]: eight neighbours of `inner`, at
    least eight; the last eight may have been there before."""

    def __init__(self, x: Any, out: Any, outer: ir.Expr, block: ir.Expr, inner: int, transform: Transform) -> None:
        super().__init__(transform)
        self.x, self.out, self.outer = x, out, outer
        self.first = bound(tirx.min(block * LANES, tirx.IntImm("int64", inner - LANES)))

    def _read(self, to: Planes, elements: int) -> None:
        if self.t.parts == 1:
            step = 2 if self.t.is_halved else 1
            with T.serial(0, elements // step) as k:
                for i in range(step):
                    self._put(to, bound(k * step), i, self._vector(self.x, k * step + i, self.first))
            if elements % step:
                self._put(to, elements - 1, 0, self._vector(self.x, whole_number(elements - 1), self.first))
            return
        with T.serial(0, elements // 2) as k:
            low, high = (bound(self._vector(self.x, k, self.first * 2 + at)) for at in (0, LANES))
            for part in (0, 1):
                value = _shuffled([low, high], range(part, 2 * LANES, 2))
                to.put_part(k, self.sides[part], value)

    def store(self, source: Planes) -> None:
        if self.t.results == 1:
            step = 2 if self.t.is_halved else 1
            with T.serial(0, self.t.outputs // step) as k:
                for i in range(step):
                    place = (self.outer, k * step + i, tirx.Ramp(self.first, 1, LANES))
                    self.out[place] = self._result(source, k * step, i)
            return
        with T.serial(0, self.t.outputs) as k:
            parts = [bound(self._result(source, k * 2, i)) for i in (0, 1)]
            for at in (0, LANES):
                lanes = [at // 2 + lane // 2 + LANES * (lane % 2) for lane in range(LANES)]
                self.out[self.outer, k, tirx.Ramp(self.first * 2 + at, 1, LANES)] = _shuffled(parts, lanes)

    def _vector(self, x: Any, k: ir.Expr, column: ir.Expr) -> ir.Expr:
        return x[self.outer, k, tirx.Ramp(column, 1, LANES)]


def _turned(vectors: list[ir.Expr]) -> list[ir.Expr]:
    statements, lanes = turned(vectors, DTYPE)
    for statement in statements:
        T.Bind(statement.value, var=statement.var)
    return lanes


def _shuffled(vectors: list[ir.Expr], lanes: range | list[int]) -> ir.Expr:
    return tirx.Shuffle(vectors, [tirx.IntImm("int32", lane) for lane in lanes])


def whole_number(value: ir.Expr | int) -> ir.Expr:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def half_of(place: ir.Expr | int) -> ir.Expr:
    return tirx.IntImm("int64", place // 2) if isinstance(place, int) else tirx.floordiv(place, 2)


def bound(value: ir.Expr) -> ir.Expr:
    """A variable of that value: what is read several times is computed once."""
    return T.Bind(value)


def zeros() -> ir.Expr:
    return tirx.Broadcast(T.float32(0.0), LANES)
