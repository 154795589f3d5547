"""What the nest reads: x itself, or a copy of it that has its padding.

The copy is of floats in float32, or in bfloat16 where pairs of them are multiplied, and of bytes in whole groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import index, kept, product, simplify, unravel
from ...code.nests import run_at
from ...products.gemm.arithmetic import part_at, parts_of
from ...products.gemm.bf16 import rounded
from ...products.gemm.narrow_pairs import mark_row
from ...products.gemm.w8a8 import GROUP, taken_apart, words_of
from .._match import Windows

_TWICE = 0x00010001  # times a number: it in both halves of a word


@dataclass(frozen=True)
class Padded:
    """A buffer [batch, *sizes, c], of which windows begin `before` elements in front."""

    buffer: ir.Var
    before: tuple[int, ...]
    sizes: Sequence[ir.Expr]
    inside: tuple[bool, ...]  # by axis, whether no window reaches beyond the buffer

    @classmethod
    def of(cls, w: Windows) -> Padded:
        """x as it is."""
        return cls(w.x, w.before, w.sizes, tuple(w.is_inside(axis) for axis in range(w.rank)))

    def is_inside(self, axis: int) -> bool:
        return self.inside[axis]


def _middle(w: Windows, width: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Where x begins in a row of `width` places of a copy, and how many places it has there."""
    begin = tirx.min(index(w.before[-1]), width)
    return begin, tirx.max(tirx.min(w.sizes[-1], width - begin), index(0))


@contextmanager
def _rows(
    w: Windows, sizes: Sequence[ir.Expr]
) -> Iterator[tuple[ir.Expr, list[ir.Expr], list[ir.Expr], list[ir.Expr]]]:
    """A parallel loop over the rows of a copy: (batch, place in the copy, place in x, tests that this lies in x)."""
    with T.parallel(product([w.batch, *sizes[:-1]])) as row:
        n, *place = (kept(simplify(at)) for at in unravel(row, [w.batch, *sizes[:-1]]))
        source = [at - before for at, before in zip(place, w.before)]
        yield n, place, source, [t for at, size in zip(source, w.sizes) for t in (at >= 0, at < size)]


def _where(inside: Sequence[ir.Expr], count: ir.Expr) -> ir.Expr:
    """`count` where all tests hold, else 0."""
    return kept(simplify(tirx.if_then_else(tirx.all(*inside), count, index(0)) if inside else count))


def padded_copy(w: Windows, dtype: str, channels: int, lanes: int) -> Padded:
    """Emit a copy of what the windows reach in `dtype`, of `channels` channels, with its padding where x ends.

    Channels beyond those of x meet weights of zero.
    """
    sizes = [w.reach(axis) for axis in range(w.rank)]
    buffer = T.alloc_buffer((w.batch, *sizes, channels), dtype, align=64)
    width = sizes[-1]
    begin, length = _middle(w, width)
    around = tirx.const(0, dtype) if w.outside is None else w.outside.astype(dtype)
    with _rows(w, sizes) as (n, place, source, inside):
        if channels != w.channels:
            row_inside = tirx.all(*inside) if inside else tirx.const(True, "bool")
            with T.serial(width) as i:
                here = kept(tirx.if_then_else(tirx.all(row_inside, i >= begin, i < begin + length), index(1), index(0)))
                with T.serial(index(w.channels)) as c:
                    # x is not read where it ends: the choice is one of control flow
                    with T.If(here > 0):
                        with T.Then():
                            T.buffer_store(buffer, w.x[(n, *source, i - begin, c)].astype(dtype), [n, *place, i, c])
                        with T.Else():
                            T.buffer_store(buffer, around, [n, *place, i, c])
                with T.serial(index(channels - w.channels)) as c:
                    T.buffer_store(buffer, around, [n, *place, i, c + w.channels])
            return Padded(buffer, (0,) * w.rank, sizes, (True,) * w.rank)
        first = kept(simplify(begin * channels))
        whole = length * channels
        count = _where(inside, whole)

        def at(flat: ir.Expr) -> list[ir.Expr]:
            return [flat // channels, flat % channels]

        with T.serial(first) as i:
            T.buffer_store(buffer, around, [n, *place, *at(i)])
        with T.serial(count // lanes) as v, T.vectorized(index(lanes)) as lane:
            flat = v * lanes + lane
            value = w.x[(n, *source, *at(flat))].astype(dtype)
            T.buffer_store(buffer, value, [n, *place, *at(first + flat)])
        with T.serial(count % lanes) as i:
            flat = count // lanes * lanes + i
            T.buffer_store(buffer, w.x[(n, *source, *at(flat))].astype(dtype), [n, *place, *at(first + flat)])
        with T.serial(simplify(width * channels) - first - count) as i:
            T.buffer_store(buffer, around, [n, *place, *at(first + count + i)])
    return Padded(buffer, (0,) * w.rank, sizes, (True,) * w.rank)


def rounded_copy(w: Windows, lanes: int) -> Padded:
    """The same of an even number of channels, in bfloat16: int32 [batch, *sizes, channels / 2], the even one low."""
    sizes, each = [w.reach(axis) for axis in range(w.rank)], w.channels // 2
    buffer = T.alloc_buffer((w.batch, *sizes, each), "int32", align=64)
    begin, length = _middle(w, sizes[-1])
    with _rows(w, sizes) as (n, place, source, inside):
        first = kept(simplify(begin * each))
        whole = length * each
        count = _where(inside, whole)
        run = _line(w.x[(n, *source, 0, 0)], "float32", whole * 2)
        line = _line(buffer[(n, *place, 0, 0)], "int32", sizes[-1] * each)
        with T.serial(first) as i:
            T.buffer_store(line, tirx.const(0, "int32"), [i])
        for width, top, number in ((lanes, index(0), count // lanes), (1, count // lanes * lanes, count % lanes)):
            with T.serial(number) as v:
                words = rounded(run[part_at(2 * top, v, 2 * width)], width)
                T.buffer_store(line, words, [part_at(first + top, v, width)])
        with T.serial(simplify(sizes[-1] * each) - first - count) as i:
            T.buffer_store(line, tirx.const(0, "int32"), [first + count + i])
    return Padded(buffer, (0,) * w.rank, sizes, (True,) * w.rank)


def _line(first: ir.TensorLoad, dtype: str, length: ir.Expr) -> ir.Var:
    """`length` neighbours from `first` on as a buffer of one dimension."""
    return run_at(tirx.address_of(first), (length,), dtype, "line")


def pairs_copy(w: Windows, channels: int, lanes: int) -> Padded:
    """The same of bytes taken apart: int32 [batch, .., 2, size, channels / 4], the even two of four, the odd ones."""
    sizes, each = [w.reach(axis) for axis in range(w.rank)], channels // GROUP
    buffer = T.alloc_buffer((w.batch, *sizes[:-1], 2, sizes[-1], each), "int32", align=64)
    begin, length = _middle(w, sizes[-1])
    around = tirx.const(0, "int32") if w.outside is None else w.outside.astype("int32") * tirx.const(_TWICE, "int32")
    with _rows(w, sizes) as (n, place, source, inside):
        count = _where(inside, length)

        def surround(top: ir.Expr, number: ir.Expr) -> None:
            with T.serial(number) as i, T.serial(index(2)) as odd, T.serial(index(each)) as q:
                T.buffer_store(buffer, around, [n, *place, odd, top + i, q])

        surround(index(0), begin)
        with T.serial(count) as i:
            for width, top, number in parts_of(w.channels // GROUP, lanes):
                with T.serial(index(number)) as v:
                    here = part_at(GROUP * top, v, GROUP * width)
                    four = tirx.reinterpret(words_of(width), w.x[(n, *source, i, here)])
                    for odd, pair in enumerate(taken_apart(four, width)):
                        T.buffer_store(buffer, pair, [n, *place, odd, begin + i, part_at(top, v, width)])
            for odd in range(2 if w.channels % GROUP else 0):
                left = [index(c) for c in range(w.channels // GROUP * GROUP, w.channels)]
                found = [w.x[(n, *source, i, c)].astype("int32") for c in left]
                low, *high = found[odd::2] or [tirx.const(0, "int32")]
                value = low | high[0] << tirx.const(16, "int32") if high else low
                T.buffer_store(buffer, value, [n, *place, odd, begin + i, index(each - 1)])
        surround(begin + count, sizes[-1] - begin - count)
    return Padded(buffer, (0,) * w.rank, sizes, (True,) * w.rank)


def marks_of(x: Padded, batch: ir.Expr, channels: int, lanes: int) -> ir.Var:
    """Emit the marks of all elements of x: uint8 [batch, *sizes, channels / 4], see `narrow_pairs`."""
    marks = T.alloc_buffer((batch, *x.sizes, channels // GROUP), "uint8", align=64)
    with T.parallel(product([batch, *x.sizes[:-1]])) as row:
        at = [kept(simplify(i)) for i in unravel(row, [batch, *x.sizes[:-1]])]
        with T.serial(x.sizes[-1]) as i:
            mark_row((x.buffer, (*at, i)), (marks, (*at, i)), channels, lanes)
    return marks
