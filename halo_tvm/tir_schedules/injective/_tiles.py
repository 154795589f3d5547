"""Injective functions that swap the contiguous axis: square tiles, turned in registers where they are whole.

y[i, j] = f(x[j, i])   ->   for runs of `edge` rows i: for tiles of `edge` columns j:
                            whole tiles of 32-bit elements: rows of x, shuffles, rows of y (`_transpose`)
                            odd edges, other widths, loads under a condition: gathers
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Expr

from ...register_tiles import WIDTHS, turned
from ..blocks import is_choice, loads, uses
from ..code.lanes import (
    ceil_div,
    constant,
    index,
    is_var,
    kept_apart,
    loop,
    parallel_rows,
    product,
    simplify,
    unravel,
)
from ..products.row_tiling import least_of
from .nest import Nest, bits, read_from, store_at, substituted

_FEW_TASKS, _TASKS_PER_CORE = 16, 8
_LEAST_ELEMENTS = 1024  # of a task
_NEAR = 4  # elements between neighbours that whole vectors read and shuffle: see `loads_in_order`


def swapped_axis(nest: Nest) -> int | None:
    """The axis that is contiguous in an operand while the output's last axis is not; None when none is."""
    if len(nest.axes) < 2 or constant(nest.extents[-1]) == 1:
        return None
    last = nest.axes[-1]
    for load in loads(nest.value):
        if not load.indices or not any(uses(i, last) for i in load.indices[:-1]):
            continue
        for number, axis in enumerate(nest.axes[:-1]):
            if is_var(load.indices[-1], axis) and constant(nest.extents[number]) != 1:
                return number
    return None


def tiles(nest: Nest, lanes: int, edge: int, tasks: int, parallel: bool, swapped: int) -> tirx.Stmt:
    """Tiles over axis `swapped` (contiguous in the operand) and the last axis (contiguous in the output).

    32-bit elements are turned in registers, where `_turned_loads` finds what to turn; the others, and the edges of odd
    sizes, gather.
    """
    last = len(nest.axes) - 1
    unit = lanes if lanes in WIDTHS and edge % lanes == 0 else 0  # rows and columns that are turned at once
    down, across = nest.extents[swapped], nest.extents[last]
    to_turn = _turned_loads(nest, swapped) if unit else ()
    scratch = [tirx.decl_buffer([index(unit**2)], str(x.source.dtype), name="turned") for x in to_turn]
    rows = rows_of_tiles(nest, swapped, edge)
    size = _columns_of_task(rows, down, across, edge, tasks) if parallel else None
    pieces = 1 if size is None else -(-constant(across) // size)

    def row(r: Expr) -> list[tirx.Stmt]:
        if size is None:
            return part(r, index(0), across)
        begin = simplify(tirx.floormod(r, index(pieces)) * index(size))
        width = index(size) if _divides(size, across) else simplify(tirx.min(index(size), across - begin))
        return part(simplify(tirx.floordiv(r, index(pieces))), begin, width)

    def part(r: Expr, begin: Expr, across: Expr) -> list[tirx.Stmt]:
        """`across` elements of the last axis from `begin` on, of row of tiles `r`."""
        first, at, top = row_of_tiles(nest, swapped, edge, r)
        height = index(edge) if _divides(edge, down) else simplify(tirx.min(index(edge), down - top))

        def place(i: Expr, j: Expr) -> dict[ir.Var, Expr]:
            return at | {nest.axes[swapped]: simplify(top + i), nest.axes[last]: simplify(begin + j)}

        def gathered(left: Expr, width: Expr | int, first: Expr, count: Expr) -> tirx.Stmt:
            def element(i: Expr) -> list[tirx.Stmt]:
                kind = tirx.ForKind.VECTORIZED if isinstance(width, int) else tirx.ForKind.SERIAL
                return [loop("j", width, lambda j: [store_at(nest, place(first + i, left + j))], kind)]

            return loop("i", count, element)

        def register_tiles(left: Expr, count: Expr) -> tirx.Stmt:
            def one(i: Expr, j: Expr) -> list[tirx.Stmt]:
                here = place(i * index(unit), left + j * index(unit))
                return _turned_tile(nest, here, swapped, to_turn, scratch, unit)

            return loop("down", tall, lambda i: [loop("across", count, lambda j: one(i, j))])

        step = unit if to_turn else edge
        whole, rest = (simplify(f(across, index(step))) for f in (tirx.floordiv, tirx.floormod))
        tall = simplify(tirx.floordiv(height, index(step)))
        out = first
        if to_turn:
            blocks = simplify(tirx.floordiv(across, index(edge)))
            left_over = simplify(whole - blocks * index(edge // unit))
            if constant(blocks) != 0:
                out.append(
                    loop("tile", blocks, lambda t: [register_tiles(simplify(t * index(edge)), index(edge // unit))])
                )
            if constant(left_over) != 0:
                out.append(register_tiles(simplify(blocks * index(edge)), left_over))
        turned_rows = simplify(tall * index(step)) if to_turn else index(0)
        if constant(whole) != 0 and not (to_turn and _divides(unit, down)):
            low = simplify(height - turned_rows)
            out.append(loop("tile", whole, lambda t: [gathered(simplify(t * index(step)), step, turned_rows, low)]))
        if constant(rest) != 0:
            out.append(gathered(simplify(whole * index(step)), constant(rest) or rest, index(0), height))
        return out

    count = simplify(rows * index(pieces))
    return parallel_rows(count, tasks, parallel, row, lambda: [tirx.AllocBuffer(b) for b in scratch])


def _columns_of_task(rows: Expr, down: Expr, across: Expr, edge: int, tasks: int) -> int | None:
    """Elements of the last axis that a task takes of its row of tiles: None for all of them, where that does.

    Rows are cut for more than a few tasks only: decisions for one core or two never did that, and were measured so.
    """
    strips, height, length = constant(rows), constant(down), constant(across)
    cores = tasks // _TASKS_PER_CORE
    if strips is None or height is None or length is None or tasks <= _FEW_TASKS:
        return None
    most = min(-(-length // edge), max(1, min(edge, height) * length // _LEAST_ELEMENTS))
    blocks = least_of(1, range(2, most + 1), lambda pieces: -(-strips * pieces // cores) / pieces)
    return None if blocks == 1 else -(-length // (blocks * edge)) * edge


def rows_of_tiles(nest: Nest, swapped: int, edge: int) -> Expr:
    """How many rows of tiles over `edge` elements of axis `swapped` and all of the last axis there are."""
    others = [extent for i, extent in enumerate(nest.extents[:-1]) if i != swapped]
    return simplify(product(others) * ceil_div(nest.extents[swapped], edge))


def row_of_tiles(nest: Nest, swapped: int, edge: int, row: Expr) -> tuple[list[tirx.Stmt], dict[ir.Var, Expr], Expr]:
    """Of one of them (what stands in front, the places of the other axes, where it begins along axis `swapped`)."""
    others = [i for i in range(len(nest.axes) - 1) if i != swapped]
    extents, count = [nest.extents[i] for i in others], ceil_div(nest.extents[swapped], edge)
    places = unravel(simplify(tirx.floordiv(row, count)), extents)
    top = simplify(tirx.floormod(row, count) * index(edge))
    first: list[tirx.Stmt] = []
    if any(constant(size) is None for size in (count, *extents[1:])):
        first, (top, *places) = kept_apart([top, *places])  # divided once, not for every element
    return first, dict(zip((nest.axes[i] for i in others), places)), top


def is_turned(nest: Nest, swapped: int) -> bool:
    """Whether whole tiles can be turned in registers."""
    return bool(_turned_loads(nest, swapped))


def is_near(nest: Nest) -> bool:
    """Whether neighbours of the output are among the next few elements of each operand, as pixels of three colours."""
    last = nest.axes[-1]
    moving = [x for x in loads(nest.value) if any(uses(i, last) for i in x.indices)]
    return all((_step(x, last) or _NEAR + 1) <= _NEAR for x in moving)


def _step(load: ir.TensorLoad, axis: ir.Var) -> int | None:
    """How many elements lie between neighbours along `axis`; None where that is not known."""
    behind = [constant(size) for size in load.source.shape]
    at = [place for place, i in enumerate(load.indices) if uses(i, axis)]
    if len(at) != 1 or not is_var(load.indices[at[0]], axis) or None in behind[at[0] + 1 :]:
        return None
    return math.prod(size for size in behind[at[0] + 1 :] if size is not None)


def _divides(step: int, extent: Expr) -> bool:
    return constant(simplify(tirx.floormod(extent, index(step)))) == 0


def _turned_loads(nest: Nest, swapped: int) -> tuple[ir.TensorLoad, ...]:
    """The loads whose contiguous axis is `swapped`, when whole tiles of all of them can be turned; else none.

    A load under a condition may stand for memory that is not there, so a value with one is not turned.
    """
    last, across = nest.axes[-1], nest.axes[swapped]
    if not is_var(nest.indices[-1], last) or is_conditional(nest.value):
        return ()
    found = []
    for load in loads(nest.value):
        if not load.indices or not is_var(load.indices[-1], across):
            continue
        if not any(uses(i, last) for i in load.indices):
            continue  # one element for all of a column
        head = list(load.indices[:-1])
        rows = sum(is_var(i, last) for i in head)
        plain = rows == 1 and sum(uses(i, last) for i in head) == 1 and not any(uses(i, across) for i in head)
        if not plain or bits(load.source) != 32:
            return ()
        if not any(tvm_ffi.structural_equal(load, other) for other in found):
            found.append(load)
    return tuple(found)


def _turned_tile(
    nest: Nest,
    here: Mapping[ir.Var, Expr],
    swapped: int,
    found: Sequence[ir.TensorLoad],
    scratch: Sequence[tirx.Buffer],
    width: int,
) -> list[tirx.Stmt]:
    """One register tile whose first element is at `here`: rows in, columns out, the rest of the value on columns."""
    last, across = nest.axes[-1], nest.axes[swapped]
    columns: list[list[Expr]] = []
    out: list[tirx.Stmt] = []
    for load in found:
        rows = []
        for j in range(width):
            at = {**here, last: simplify(here[last] + index(j))}
            indices = [simplify(substituted(i, at)) for i in load.indices]
            rows.append(tirx.BufferLoad(load.source, [*indices[:-1], tirx.Ramp(indices[-1], index(1), width)]))
        bound, turned_columns = turned(rows, str(load.source.dtype))
        out += bound
        columns.append(turned_columns)
    if len(found) == 1 and tvm_ffi.structural_equal(nest.value, found[0]):
        for i, column in enumerate(columns[0]):
            at = {**here, across: simplify(here[across] + index(i))}
            indices = [simplify(substituted(index_, at)) for index_ in nest.indices]
            out.append(tirx.BufferStore(nest.output, column, [*indices[:-1], tirx.Ramp(indices[-1], index(1), width)]))
        return out
    for buffer, vectors in zip(scratch, columns):
        out += [
            tirx.BufferStore(buffer, v, [tirx.Ramp(index(i * width), index(1), width)]) for i, v in enumerate(vectors)
        ]

    def row(i: Expr) -> list[tirx.Stmt]:
        def one(j: Expr) -> list[tirx.Stmt]:
            value = read_from(nest.value, zip(found, scratch), simplify(i * index(width) + j))
            at = {**here, across: simplify(here[across] + i), last: simplify(here[last] + j)}
            return [store_at(replace(nest, value=value), at)]

        return [loop("j", width, one, tirx.ForKind.VECTORIZED)]

    return [*out, loop("i", width, row)]


def is_conditional(value: Expr) -> bool:
    """Whether a part of `value` is computed under a condition only."""
    found: list[object] = []

    def visit(node: ir.Call) -> None:
        if is_choice(node):
            found.append(node)

    tvm_ffi.structural_walk(value, (ir.Call, visit), order="post")
    tvm_ffi.structural_walk(value, (tirx.Select, found.append), order="post")
    return bool(found)
