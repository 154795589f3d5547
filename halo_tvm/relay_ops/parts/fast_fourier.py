"""Fourier transforms in n log n steps, eight side by side in the lanes of vectors.

    load     number k of all eight is a vector, of real and of imaginary parts (`fourier_planes`)
    pass     [m, l] -> [m / r, l * r] for every factor r of the length: r numbers that lie m / r apart are turned by
             angles and transformed among themselves (Stockham's order: numbers end where they belong)
    store    back

A real signal of even length is transformed as half as many complex numbers, its even elements and its odd ones, and
taken apart afterwards; on the way back it is put together in front. An inverse transform is one of exchanged parts.

C. Van Loan, Computational Frameworks for the Fast Fourier Transform, 1.7 and 4.1 (factors), 4.3 (real signals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, te, tirx
from tvm.script.ir_builder import tirx as T

from .factorisations import made
from .fourier_planes import DTYPE, LANES, Columns, Lanes, Planes, Rows, Vector, bound, whole_number, zeros
from .fourier_transform import Transform


def transformed(x: te.Tensor, table: te.Tensor, transform: Transform) -> te.Tensor:
    """Rows [r, given * parts] -> [r, outputs * results], or columns [r, given, inner * parts] -> [r, outputs,
    inner * results], at least eight; `table` is that of `transform`."""
    rows, t = x.shape[0], transform
    inner = int(x.shape[2]) // t.parts if len(x.shape) == 3 else 0

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (x, table), (out,) = ins, outs
        a_row = -(-inner // LANES)  # blocks of columns
        blocks = rows * a_row if inner else tirx.floordiv(rows + (LANES - 1), LANES)
        loop = T.serial if isinstance(blocks, tirx.IntImm) and int(blocks) == 1 else T.parallel
        with loop(0, blocks) as block, T.seq_scope():
            if inner:
                at, column = tirx.floordiv(block, a_row), tirx.floormod(block, a_row)
                _emit(Columns(x, out, at, column, inner, t), table)
            else:
                _emit(Rows(x, out, block, t), table)

    shape = [rows, t.outputs, inner * t.results] if inner else [rows, t.outputs * t.results]
    return made("fourier", [x, table], [(shape, DTYPE)], nest)[0]


def _emit(lanes: Lanes, table: Any) -> None:
    t, steps = lanes.t, _Steps(lanes, table)
    count = max(t.numbers + 1, t.outputs if t.results == 2 else 0)
    source, target = Planes(count), Planes(count)
    lanes.load(source)
    if t.is_halved and t.results == 1:
        steps.join(source, target)
        source, target = target, source
    left, done, offset = t.numbers, 1, 0
    for factor in t.factors or ():
        steps.pass_of(source, target, factor, left, done, offset)
        source, target = target, source
        left, done, offset = left // factor, done * factor, offset + (factor - 1) * done
    if t.is_halved and t.parts == 1:
        steps.take_apart(source, target)
        source = target
    lanes.store(source)


class _Steps:
    """What is done to the numbers of eight transforms."""

    def __init__(self, lanes: Lanes, table: Any) -> None:
        self.t, self.sides, self.table = lanes.t, lanes.sides, table
        self.of_signal = self.t.table_size // 2 - (self.t.numbers + 1)  # where the angles of k / length begin

    def _angle(self, place: ir.Expr | int) -> Vector:
        cos, sin = (tirx.Broadcast(self.table[whole_number(place) * 2 + i], LANES) for i in (0, 1))
        return bound(cos), bound(sin)

    def pass_of(self, source: Planes, target: Planes, factor: int, left: int, done: int, offset: int) -> None:
        apart = left // factor
        with T.serial(0, done) as k:
            angles = [self._angle(offset + k * (factor - 1) + p) for p in range(factor - 1)] if done > 1 else []
            with T.serial(0, apart) as j:
                values = [source.get((j + p * apart) * done + k) for p in range(factor)]
                values[1:] = [_times(v, angle) for v, angle in zip(values[1:], angles)] if angles else values[1:]
                for q, value in enumerate(_among(values)):
                    target.put((j * factor + q) * done + k, value)

    def take_apart(self, source: Planes, target: Planes) -> None:
        """Half the spectrum of a signal, of the transform of its even elements and, as imaginary parts, its odd."""
        n, offset = self.t.numbers, self.of_signal
        first = source.get(0)
        target.put(0, (first[0] + first[1], zeros()))
        target.put(n, (first[0] - first[1], zeros()))
        half = tirx.Broadcast(T.float32(0.5), LANES)
        with T.serial(0, n - 1) as i:
            k = bound(i + 1)
            (a, b), (c, d) = source.get(k), source.get(n - k)
            odd = _times(((b + d) * half, (c - a) * half), self._angle(offset + k))
            real, imaginary = bound((a + c) * half + odd[0]), bound((b - d) * half + odd[1])
            target.put(k, (real, imaginary))
            if self.t.outputs > n + 1:  # the whole spectrum
                target.put(self.t.length - k, (real, zeros() - imaginary))

    def join(self, source: Planes, target: Planes) -> None:
        """What `take_apart` takes apart, twice as large; parts are exchanged, as for every inverse transform."""
        n, offset = self.t.numbers, self.of_signal
        for end in (0, n):
            source.put_part(end, self.sides[1], zeros())
        with T.serial(0, n) as k:
            real, imaginary = self.sides
            a, b = bound(source.part(k, real)), bound(source.part(k, imaginary))
            c, d = bound(source.part(n - k, real)), bound(source.part(n - k, imaginary))
            cos, sin = self._angle(offset + k)  # of the transform forth: turned back here
            x, y = bound(a - c), bound(b + d)
            odd = (x * cos + y * sin, y * cos - x * sin)
            target.put_part(k, real, (a + c) - odd[1])
            target.put_part(k, imaginary, (b - d) + odd[0])


def _times(value: Vector, angle: Vector) -> Vector:
    (x, y), (cos, sin) = value, angle
    return bound(x * cos - y * sin), bound(x * sin + y * cos)


def _among(values: Sequence[Vector]) -> list[Vector]:
    """The transform of a few numbers."""
    if len(values) == 2:
        (a, b), (c, d) = values
        return [(a + c, b + d), (a - c, b - d)]
    if len(values) == 4:
        even, odd = _among([values[0], values[2]]), _among([values[1], values[3]])
        (a, b), (c, d) = ((bound(x), bound(y)) for x, y in even)
        (e, f), (g, h) = ((bound(x), bound(y)) for x, y in odd)
        return [(a + e, b + f), (c + h, d - g), (a - e, b - f), (c - h, d + g)]
    return _of_odd_many(values)


def _of_odd_many(values: Sequence[Vector]) -> list[Vector]:
    """By the sums and differences of numbers that lie opposite: their angles are opposite as well."""
    count, (x, y) = len(values), values[0]
    pairs = [(values[p], values[count - p]) for p in range(1, count // 2 + 1)]
    sums = [(bound(a + c), bound(b + d)) for (a, b), (c, d) in pairs]
    differences = [(bound(a - c), bound(b - d)) for (a, b), (c, d) in pairs]
    found: list[Vector] = [(x, y)] * count
    total = (x, y)
    for a, b in sums:
        total = (total[0] + a, total[1] + b)
    found[0] = total
    for q in range(1, count // 2 + 1):
        even, odd = (x, y), None
        for p, ((a, b), (c, d)) in enumerate(zip(sums, differences), 1):
            cos, sin = (T.float32(f(2 * math.pi * (p * q % count) / count)) for f in (math.cos, math.sin))
            cos, sin = tirx.Broadcast(cos, LANES), tirx.Broadcast(sin, LANES)
            even = (even[0] + a * cos, even[1] + b * cos)
            odd = (c * sin, d * sin) if odd is None else (odd[0] + c * sin, odd[1] + d * sin)
        assert odd is not None, "an odd factor is at least 3"
        (e, f), (g, h) = (bound(even[0]), bound(even[1])), (bound(odd[0]), bound(odd[1]))
        found[q], found[count - q] = (e + h, f - g), (e - h, f + g)
    return found
