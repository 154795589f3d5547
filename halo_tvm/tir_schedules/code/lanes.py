"""Loops over one row in vectors of lanes, with exact tails: what the memory-bound rules emit.

Statements are written directly: TVM's schedule primitives guard the last vector of an odd length by a
predicate, which turns the whole loop back into scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import ir, s_tir, sym, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from ..blocks import written_out

# `body(j, slot)` gives the statements for element j; slot is the accumulator lane, None in a scalar tail.
Body = Callable[[Expr, Expr | None], Sequence[tirx.Stmt]]


def index(value: int) -> tirx.IntImm:
    """An index constant."""
    return tirx.IntImm("int64", value)


def constant(expr: Expr) -> int | None:
    """The value of an integer constant, or None for a symbolic expression."""
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def simplify(expr: Expr) -> Expr:
    """`expr` simplified, as an index."""
    return tvm.sym.Analyzer().simplify(expr)


def kept(value: Expr) -> Expr:
    """Emit `value`, an index, as an element of a buffer of its own; a constant stays one.

    Lowering would inline a binding into every index that it is part of, and simplify each.
    """
    if constant(value) is not None:
        return value
    place = T.alloc_buffer((1,), "int64")
    T.buffer_store(place, value, [0])
    return place[0]


def kept_apart(values: Sequence[Expr]) -> tuple[list[tirx.Stmt], list[Expr]]:
    """As `kept` of each of `values`, for who puts statements together: those that come first, and what is read then."""
    place = tirx.decl_buffer([index(len(values))], "int64", name="place")
    stores = [tirx.BufferStore(place, value, [index(at)]) for at, value in enumerate(values)]
    return [tirx.AllocBuffer(place), *stores], [place[index(at)] for at in range(len(values))]


def run(first: Expr, width: int) -> Expr:
    """The index of `width` neighbours from `first` on."""
    return first if width == 1 else tirx.Ramp(first, index(1), width)


def product(extents: Sequence[Expr]) -> Expr:
    """The product of `extents`, one for none."""
    out: Expr = index(1)
    for extent in extents:
        out = out * tirx.Cast("int64", extent) if str(extent.ty.dtype) != "int64" else out * extent
    return simplify(out)


def ceil_div(a: Expr, b: Expr | int) -> Expr:
    """ceil(a / b) for positive numbers."""
    b = index(b) if isinstance(b, int) else b
    return simplify(tirx.floordiv(a + b - index(1), b))


def loop(
    name: str, extent: Expr | int, body: Callable[[Expr], Sequence[tirx.Stmt]], kind: tirx.ForKind = tirx.ForKind.SERIAL
) -> tirx.Stmt:
    """for name in range(extent): body(name); no loop at all for the extent one."""
    extent = index(extent) if isinstance(extent, int) else extent
    if constant(extent) == 1 and kind != tirx.ForKind.PARALLEL:
        return seq(body(index(0)))
    var = tirx.Var(name, "int64")
    return tirx.For(var, index(0), extent, kind, seq(body(var)))


def seq(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement out of several."""
    assert statements, "an empty loop body"
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def vectors_of(length: int, lanes: int) -> list[tuple[int, int]]:
    """(first, width) of the vectors that cover `length` elements: of `lanes`, a power of two, then of ever fewer."""
    found, first, width = [], 0, lanes
    while first < length:
        while width > length - first:
            width //= 2
        found.append((first, width))
        first += width
    return found


def vectorised(width: int, store: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
    """store(lane) of a vector's lanes."""
    return loop("lane", width, lambda lane: [store(lane)], tirx.ForKind.VECTORIZED)


def joined(
    vectors: Sequence[tuple[ir.Var, int]], operation: Callable[[Expr, Expr], Expr], lanes: int
) -> list[tirx.Stmt]:
    """All of `vectors`, each of a buffer from a place on, into the first element of the first: vectors, then halves."""
    out: list[tirx.Stmt] = []

    def join(width: int, to: tuple[ir.Var, int], other: tuple[ir.Var, int]) -> None:
        (buffer, first), (source, second) = to, other

        def store(lane: Expr) -> tirx.Stmt:
            value = operation(buffer[index(first) + lane], source[index(second) + lane])
            return tirx.BufferStore(buffer, value, [index(first) + lane])

        out.append(vectorised(width, store))

    while len(vectors) > 1:
        half = len(vectors) // 2
        for to, other in zip(vectors[:half], vectors[-half:]):
            join(lanes, to, other)
        vectors = vectors[: len(vectors) - half]
    ((buffer, first),) = vectors
    while lanes > 1:
        lanes //= 2
        join(lanes, (buffer, first), (buffer, first + lanes))
    return out


def vector_loop(start: Expr, length: Expr, lanes: int, unroll: int, body: Body) -> list[tirx.Stmt]:
    """body for start <= j < start + length.

    Before -> after
        for j in length   ->   for jo in length // (lanes * unroll): unrolled, vectorised
                               for jo in length // lanes % unroll: vectorised
                               static rest: vectors of 8, 4, 2, 1 lanes; symbolic rest: scalar
    """
    out: list[tirx.Stmt] = []
    size = constant(length)
    if size is not None:
        unroll = max(1, min(unroll, size // lanes))
    step = lanes * unroll

    def vectors(offset: Expr, slot: int, width: int) -> tirx.Stmt:
        return loop(
            "lane",
            width,
            lambda lane: body(simplify(offset + lane), simplify(index(slot) + lane)),
            tirx.ForKind.VECTORIZED,
        )

    blocks = simplify(tirx.floordiv(length, index(step)))
    if constant(blocks) != 0:
        out.append(
            loop(
                "block",
                blocks,
                lambda b: [
                    vectors(start + b * index(step) + index(u * lanes), u * lanes, lanes) for u in range(unroll)
                ],
            )
        )
    singles = simplify(tirx.floormod(tirx.floordiv(length, index(lanes)), index(unroll)))
    if constant(singles) != 0:
        done = simplify(start + blocks * index(step))
        out.append(loop("vector", singles, lambda v: [vectors(done + v * index(lanes), 0, lanes)]))
    if size is not None:
        whole = size - size % lanes
        rest = vectors_of(size % lanes, lanes)
        out += [vectors(simplify(start + index(whole + first)), 0, width) for first, width in rest]
    else:
        done = simplify(start + tirx.floordiv(length, index(lanes)) * index(lanes))
        out.append(
            loop("rest", simplify(tirx.floormod(length, index(lanes))), lambda t: body(simplify(done + t), None))
        )
    return out


def parallel_rows(
    rows: Expr,
    tasks: int,
    parallel: bool,
    row: Callable[[Expr], Sequence[tirx.Stmt]],
    head: Callable[[], Sequence[tirx.Stmt]],
) -> tirx.Stmt:
    """row(r) for 0 <= r < rows, in at most `tasks` parallel runs of rows; head() at the start of each run."""
    if not parallel:
        return seq([*head(), loop("row", rows, row)])
    count = simplify(tirx.max(ceil_div(rows, tasks), index(1)))
    named: list[tirx.Stmt] = []
    if constant(count) is None:  # an expression of symbolic extents, in every place of a row
        named.append(tirx.Bind(tirx.Var("count", "int64"), count))
        count = named[0].var

    def run(task: Expr) -> list[tirx.Stmt]:
        left = simplify(tirx.min(count, rows - task * count))
        return [*head(), loop("row", left, lambda r: row(simplify(task * count + r)))]

    return seq([*named, loop("task", ceil_div(rows, count), run, tirx.ForKind.PARALLEL)])


def in_parallel_when_large(work: Expr, serial_below: int, emit: Callable[[bool], tirx.Stmt]) -> tirx.Stmt:
    """emit(True) for work of at least `serial_below` elements, else emit(False); decided at run time when symbolic."""
    size = constant(work)
    if size is not None:
        return emit(size >= serial_below)
    steps = sym.Analyzer().modular_set(work)
    if serial_below <= 0 or (steps.base == 0 and steps.coeff >= serial_below):
        return emit(True)  # a branch for nothing is one in which TVM divides by its sizes, and by 0
    return tirx.IfThenElse(work >= index(serial_below), emit(True), emit(False))


def unravel(flat: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """Indices of element `flat` of an array of `extents`; only the first may be symbolic without a division."""
    out: list[Expr] = []
    for extent in reversed(extents[1:]):
        extent = index(constant(extent)) if constant(extent) is not None else extent
        out.append(simplify(tirx.floormod(flat, extent)))
        flat = simplify(tirx.floordiv(flat, extent))
    return [flat, *reversed(out)] if extents else []


def replace_body(func: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
    """`func` with one opaque block around `body`, marked as scheduled; variables bound twice are renamed."""
    block = s_tir.SBlock([], [], [], "root", body)
    root = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    return tirx.transform.ConvertSSA()(tvm.IRModule({"main": written_out(func, root)}))["main"]


def as_int64(expr: Expr) -> Expr:
    """`expr` as an int64 index."""
    return expr if str(expr.ty.dtype) == "int64" else tirx.Cast("int64", expr)


def is_var(expr: Expr, var: ir.Var) -> bool:
    """Whether `expr` is exactly `var`."""
    return isinstance(expr, ir.Var) and expr.same_as(var)
