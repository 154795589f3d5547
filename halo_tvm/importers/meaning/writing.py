"""Elements written one after another, at places that are data: the loops of scatter operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import ir, relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.sym import Analyzer

from .builder import Builder
from .sizes import Dim, prim

Nest = Callable[[Sequence[Any], Sequence[Any]], ir.Expr]
Combine = Callable[[ir.Expr, ir.Expr], ir.Expr]
COMBINED: dict[str, Combine] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": tirx.max,
    "min": tirx.min,
}

_NARROWEST = 32  # elements side by side of a task: two lines of memory, so that no two tasks write to one
_MOST_TASKS = 8
_LEAST_WORK = 1 << 14  # elements, from which on threads are started


def written(builder: Builder, nest: Nest, *args: relax.Expr) -> relax.Expr:
    """What `nest(buffers of args, buffers of results)` writes into one tensor like the first of `args`."""

    def compute(*args: te.Tensor) -> te.Tensor:
        data, names = args[0], ("data", "indices", "updates")
        buffers = [tirx.decl_buffer(a.shape, a.dtype, name=n) for a, n in zip(args, names)]
        out = tirx.decl_buffer(data.shape, data.dtype, name="out")
        return te.extern(
            [data.shape], list(args), nest, name="scatter", dtype=[data.dtype], in_buffers=buffers, out_buffers=[out]
        )

    return builder.te(compute, *args)


def write_rows(
    builder: Builder,
    data: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    combine: Combine,
    *,
    first: bool = False,
) -> relax.Expr:
    """`data` whose parts at `indices` are combined with `updates`, one after another.

    Shapes: data [*s], indices [*rows, depth] or, with `first`, [depth, *rows], updates [*rows, *s[depth:]].
    Negative indices count from the end. An update outside of `data` is dropped: no kernel writes foreign memory.
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
                places = [from_start(index, size) for index, size in zip(found, shape)]
                inside = [test for p, size in zip(places, shape) for test in (p >= 0, p < size)]
                place = flat_place(places, shape[:depth]) * part + begin
                with T.If(tirx.all(*inside) if inside else tirx.const(True, "bool")), T.Then():
                    with T.serial(0, width) as j:
                        out[place + j] = combine(out[place + j], updates[row * part + begin + j])
        return built.get()

    return written(builder, nest, data, indices, updates)


def write_elements(
    builder: Builder, data: relax.Expr, indices: relax.Expr, updates: relax.Expr, axis: int, combine: Combine
) -> relax.Expr:
    """`data` whose elements at `indices` along `axis` are combined with `updates`, one after another.

    Shapes: indices and updates alike, along other axes at most as large as data. Indices as those of `write_rows`.
    """
    rows = _of_rows(builder, indices, data, axis)
    if rows is not None:
        return write_rows(builder, data, rows, updates, combine)

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
                    out[place] = combine(out[place], updates[flat])
        return built.get()

    return written(builder, nest, data, indices, updates)


def from_start(index: ir.Expr, size: ir.Expr) -> ir.Expr:
    """`index`, which counts from the end where it is negative."""
    index = index.astype("int64")
    return tirx.Select(index < 0, index + size, index)


def _of_rows(builder: Builder, indices: relax.Expr, data: relax.Expr, axis: int) -> relax.Expr | None:
    """[rows, 1], where `indices` are that for whole rows of `data`, as graph nets spell it; else None."""
    call = builder.block.lookup_binding(indices) if isinstance(indices, relax.Var) else None
    if axis or not isinstance(call, relax.Call) or getattr(call.op, "name", "") != "relax.broadcast_to":
        return None
    source = call.args[0]
    sizes = [*getattr(getattr(source.ty, "shape", None), "values", ())]
    rest = zip(indices.ty.shape.values[1:], data.ty.shape.values[1:])
    if len(sizes) != data.ty.ndim or len(sizes) < 2 or not all(_is(size, 1) for size in sizes[1:]):
        return None
    if not all(isinstance(size, tirx.IntImm) and _is(of_data, int(size)) for size, of_data in rest):
        return None
    return builder.emit(relax.op.reshape(source, [sizes[0], prim(1)]))


def _is(size: ir.Expr, number: int) -> bool:
    return isinstance(size, tirx.IntImm) and int(size) == number


def _copy(out: Any, data: Any, shape: Sequence[ir.Expr]) -> None:
    with _pieces(element_count(shape), []) as (begin, width), T.serial(0, width) as i:
        out[begin + i] = data[begin + i]


@contextmanager
def _pieces(width: ir.Expr, repeated: Sequence[ir.Expr]) -> Iterator[tuple[ir.Expr, ir.Expr]]:
    """(begin, width) of what a task writes of every run of `width` elements; all of it where runs are short, or few."""
    known, work = _known([width]) or 1, _known([width, *repeated])
    counts = [n for n in range(1, _MOST_TASKS + 1) if known % n == 0 and known // n >= _NARROWEST]
    if not counts or counts[-1] == 1 or (work is not None and work < _LEAST_WORK):
        yield prim(0), width
        return
    each = known // counts[-1]
    with T.parallel(0, counts[-1]) as task:
        yield task * each, prim(each)


@contextmanager
def _all_places(given: Sequence[ir.Expr], axis: int) -> Iterator[list[ir.Expr]]:
    """Loops over all elements of a tensor of the sizes `given`, of which tasks have parts with places of their own."""
    last = len(given) - 1
    work = _known(given)
    threads = axis != 0 and not _is(given[0], 1) and (work is None or work >= _LEAST_WORK)  # of the first axis
    with ExitStack() as stack:
        begin, width = prim(0), given[last]
        if not threads and axis < last:
            begin, width = stack.enter_context(_pieces(width, given[:last]))
        at = []
        for a, size in enumerate([*given[:last], width]):
            loop = T.parallel if threads and a == 0 else T.serial
            at.append(stack.enter_context(loop(0, size)))
        yield [*at[:last], begin + at[last]]


def _known(sizes: Sequence[ir.Expr]) -> int | None:
    """The product of `sizes` where all are known."""
    found = [Analyzer().simplify(prim(size)) for size in sizes]
    return math.prod(map(int, found)) if all(isinstance(size, tirx.IntImm) for size in found) else None


def element_count(shape: Sequence[Dim]) -> ir.Expr:
    """The number of elements, left as it is written."""
    total = prim(1)
    for size in shape:
        total = total * prim(size)
    return total


def places_of(flat: ir.Expr, shape: Sequence[Dim]) -> list[ir.Expr]:
    """Where the element number `flat` of a tensor of `shape` is along each axis."""
    places: list[ir.Expr] = []
    for size in reversed(list(shape)):
        places.insert(0, tirx.floormod(flat, size))
        flat = tirx.floordiv(flat, size)
    return places


def flat_place(places: Sequence[ir.Expr], shape: Sequence[Dim]) -> ir.Expr:
    """The number of the element at `places` of a tensor of `shape`."""
    out = prim(0)
    for place, size in zip(places, shape):
        out = out * size + place
    return out
