"""Loops whose steps have an order: elements written one after another at places that are data, and running sums.

Tasks have elements of their own that lie side by side, so that no two write to one line of memory and vectors do them.
Places: negative ones count from the end. What lies outside is dropped: no kernel writes foreign memory.
Sums and products of numbers of 16 bits, those of `COMBINED`, are made in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import ir, te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.sym import Analyzer

from ...extremes import maximum, minimum

Combine = Callable[[ir.Expr, ir.Expr], ir.Expr]
Nest = Callable[[Sequence[Any], Sequence[Any]], ir.Expr]
_ACCUMULATING: dict[str, Combine] = {"add": lambda old, new: old + new, "mul": lambda old, new: old * new}
COMBINED: dict[str, Combine] = {
    "update": lambda old, new: new,
    **_ACCUMULATING,
    "max": maximum,
    "min": minimum,
}

_NARROWEST = 32  # elements side by side of a task: two lines of memory
_MOST_TASKS = 8  # of elements side by side
_LEAST_WORK = 1 << 14  # elements written, from which on threads are started
_HALVES = ("float16", "bfloat16")


def written(nest: Nest, *args: te.Tensor) -> te.Tensor:
    """What `nest(buffers of args, buffers of results)` writes into one tensor like the first of `args`."""
    return _written_in(str(args[0].dtype), nest, *args)


def _written_in(dtype: str, nest: Nest, *args: te.Tensor) -> te.Tensor:
    """`written`, into elements of `dtype`."""
    data, names = args[0], ("data", "indices", "updates")
    buffers = [tirx.decl_buffer(a.shape, a.dtype, name=n) for a, n in zip(args, names)]
    out = tirx.decl_buffer(data.shape, dtype, name="out")
    return te.extern(
        [data.shape], list(args), nest, name="scatter", dtype=[dtype], in_buffers=buffers, out_buffers=[out]
    )


def _combined(combine: Combine, nest: Nest, *args: te.Tensor) -> te.Tensor:
    """`written` of a nest that combines elements by `combine`."""
    dtype = str(args[0].dtype)
    if combine in _ACCUMULATING.values() and dtype in _HALVES:
        return topi.cast(_written_in("float32", nest, *args), dtype)
    return written(nest, *args)


def rows_written(
    data: te.Tensor,
    indices: te.Tensor,
    updates: te.Tensor,
    combine: Combine,
    first: bool = False,
    from_end: bool = True,
) -> te.Tensor:
    """`data` whose parts at `indices` are combined with `updates`, one after another.

    Shapes: data [*s], indices [*rows, depth] or, with `first`, [depth, *rows], updates [*rows, *s[depth:]]. Negative
    indices lie outside without `from_end`.
    """

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> ir.Expr:
        data, indices, updates, out = (T.buffer_proxy(b) for b in (*ins, *outs))
        shape, given = ins[0].shape, ins[1].shape
        depth, *lead = (given[0], *given[1:]) if first else (given[-1], *given[:-1])
        depth, rows, part = int(depth), element_count(lead), element_count(shape[int(depth) :])
        with IRBuilder() as built, T.seq_scope():
            _copy(out, data, shape)
            with _pieces(part, [rows]) as (begin, width), T.serial(0, rows) as row:
                found = [indices[k * rows + row if first else row * depth + k] for k in range(depth)]
                place_of = from_start if from_end else lambda index, _size: index.astype("int64")
                places = [place_of(index, size) for index, size in zip(found, shape)]
                inside = [test for p, size in zip(places, shape) for test in (p >= 0, p < size)]
                place = flat_place(places, shape[:depth]) * part + begin
                with T.If(tirx.all(*inside) if inside else tirx.const(True, "bool")), T.Then():
                    with T.serial(0, width) as j:
                        new = updates[row * part + begin + j].astype(outs[0].dtype)
                        out[place + j] = combine(out[place + j], new)
        return built.get()

    return _combined(combine, nest, data, indices, updates)


def elements_written(data: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int, combine: Combine) -> te.Tensor:
    """`data` whose elements at `indices` along `axis` are combined with `updates`, one after another.

    Shapes: indices and updates alike, along other axes at most as large as data.
    """

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> ir.Expr:
        data, indices, updates, out = (T.buffer_proxy(b) for b in (*ins, *outs))
        shape, given = ins[0].shape, ins[1].shape
        with IRBuilder() as built, T.seq_scope():
            _copy(out, data, shape)
            with _all_places(given, axis) as at:
                flat = flat_place(at, given)
                index = from_start(indices[flat], shape[axis])
                place = flat_place([index if a == axis else i for a, i in enumerate(at)], shape)
                with T.If(tirx.all(index >= 0, index < shape[axis])), T.Then():
                    out[place] = combine(out[place], updates[flat].astype(outs[0].dtype))
        return built.get()

    return _combined(combine, nest, data, indices, updates)


def running(x: te.Tensor, axis: int, dtype: str, exclusive: bool, combine: Combine, neutral: int) -> te.Tensor:
    """y[k] = x[0], .., x[k] along `axis` combined in `dtype`, or x[0], .., x[k - 1] with `exclusive`.

    `combine` is associative: a GPU's threads combine parts of their own first (`halo.scan` marks the block for them).
    """
    before, after = element_count(x.shape[:axis]), element_count(x.shape[axis + 1 :])
    length, parts = x.shape[axis], _parts(after)

    def nest(ins: Sequence[Any], outs: Sequence[Any]) -> ir.Expr:
        given, out = (T.buffer_proxy(b) for b in (*ins, *outs))
        width = after if parts == 1 else tirx.floordiv(after, parts)
        with IRBuilder() as built, T.parallel(0, before * parts) as task:
            first = tirx.floordiv(task, parts) * (length * after) + tirx.floormod(task, parts) * width
            with T.serial(0, tirx.min(length, _index(1))), T.serial(0, width) as j:
                out[first + j] = tirx.const(neutral, dtype) if exclusive else given[first + j].astype(dtype)
            with T.serial(0, length - 1) as k, T.serial(0, width) as j:
                at = first + k * after + j
                out[at + after] = combine(out[at], given[at if exclusive else at + after].astype(dtype))
        return built.get()

    given, result = tirx.decl_buffer(x.shape, x.dtype, "x"), tirx.decl_buffer(x.shape, dtype, "out")
    return te.extern(
        [x.shape],
        [x],
        nest,
        name="scan",
        dtype=[dtype],
        in_buffers=[given],
        out_buffers=[result],
        attrs={"halo.scan": True},
    )


def from_start(index: ir.Expr, size: ir.Expr) -> ir.Expr:
    """`index`, which counts from the end where it is negative."""
    index = index.astype("int64")
    return tirx.Select(index < 0, index + size, index)


def element_count(shape: Sequence[ir.Expr | int]) -> ir.Expr:
    """The number of elements, left as it is written."""
    total: ir.Expr = _index(1)
    for size in shape:
        total = total * size
    return total


def places_of(flat: ir.Expr, shape: Sequence[ir.Expr | int]) -> list[ir.Expr]:
    """Where the element number `flat` of a tensor of `shape` is along each axis."""
    places: list[ir.Expr] = []
    for size in reversed(list(shape)):
        places.insert(0, tirx.floormod(flat, size))
        flat = tirx.floordiv(flat, size)
    return places


def flat_place(places: Sequence[ir.Expr], shape: Sequence[ir.Expr | int]) -> ir.Expr:
    """The number of the element at `places` of a tensor of `shape`."""
    out: ir.Expr = _index(0)
    for place, size in zip(places, shape):
        out = out * size + place
    return out


def _index(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _copy(out: Any, data: Any, shape: Sequence[ir.Expr]) -> None:
    with _pieces(element_count(shape), []) as (begin, width), T.serial(0, width) as i:
        out[begin + i] = data[begin + i].astype(out.dtype)


def _parts(width: ir.Expr) -> int:
    """Into how many tasks a run of `width` elements is cut: 1 where it is short, or of an open size."""
    known = _known([width]) or 1
    return max(n for n in range(1, _MOST_TASKS + 1) if n == 1 or known % n == 0 and known // n >= _NARROWEST)


@contextmanager
def _pieces(width: ir.Expr, repeated: Sequence[ir.Expr]) -> Iterator[tuple[ir.Expr, ir.Expr]]:
    """(begin, width) of what a task writes of every run of `width` elements; all of it where runs are short, or few."""
    parts, work = _parts(width), _known([width, *repeated])
    if parts == 1 or (work is not None and work < _LEAST_WORK):
        yield _index(0), width
        return
    each = tirx.floordiv(width, parts)
    with T.parallel(0, parts) as task:
        yield task * each, each


@contextmanager
def _all_places(given: Sequence[ir.Expr], axis: int) -> Iterator[list[ir.Expr]]:
    """Loops over all elements of a tensor of the sizes `given`, of which tasks have parts with places of their own."""
    last = len(given) - 1
    work, front = _known(given), _known(given[:1])
    threads = axis != 0 and front != 1 and (work is None or work >= _LEAST_WORK)  # of the first axis
    with ExitStack() as stack:
        begin, width = _index(0), given[last]
        if not threads and axis < last:
            begin, width = stack.enter_context(_pieces(width, given[:last]))
        at = []
        for a, size in enumerate([*given[:last], width]):
            loop = T.parallel if threads and a == 0 else T.serial
            at.append(stack.enter_context(loop(0, size)))
        yield [*at[:last], begin + at[last]]


def _known(sizes: Sequence[ir.Expr]) -> int | None:
    """The product of `sizes` where all are known."""
    found = [Analyzer().simplify(size) for size in sizes]
    return math.prod(map(int, found)) if all(isinstance(size, tirx.IntImm) for size in found) else None
