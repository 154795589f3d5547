"""Injective functions that swap the contiguous axis, on a GPU: tiles turned in shared memory.

y[i, j] = f(x[j, i])   ->   blocks of 32 x 8 threads, a tile of 32 x 32 elements each: a warp reads 32 elements of a
                            row of x and later writes 32 of a row of y, reading a column of the tile between. Rows of
                            the tile are one element longer than it is wide: the 32 banks serve a column at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import ir, tirx
from tvm.ir import Expr

from ..blocks import loads, uses
from ..code.lanes import ceil_div, constant, index, is_var, product, seq, simplify, unravel
from ..code.threads import bound, distinct, shared, unrolled
from ._tiles import is_conditional
from .nest import Nest, read_from, store_at, substituted

TILE = 32
_HEIGHT = 8  # rows of a tile at a time
_MOST_TILES = 4  # of one block, in shared memory without the opt-in


def turned_loads(nest: Nest, swapped: int) -> tuple[ir.TensorLoad, ...]:
    """The loads whose contiguous axis is `swapped` and that use the output's last axis; none when they are too many.

    A load under a condition may stand for memory that is not there, so a value with one is not turned.
    """
    last, across = nest.axes[-1], nest.axes[swapped]
    if not is_var(nest.indices[-1], last) or is_conditional(nest.value):
        return ()
    found = [
        x
        for x in distinct(loads(nest.value))
        if x.indices and is_var(x.indices[-1], across) and any(uses(i, last) for i in x.indices[:-1])
    ]
    return tuple(found) if len(found) <= _MOST_TILES else ()


def turned_by_blocks(nest: Nest, swapped: int, turned: Sequence[ir.TensorLoad]) -> tirx.Stmt:
    """One launch; `turned` are the loads of `turned_loads`."""
    last = len(nest.axes) - 1
    others = [i for i in range(last) if i != swapped]
    down, across = nest.extents[swapped], nest.extents[last]
    rows, columns = ceil_div(down, TILE), ceil_div(across, TILE)
    tiles = [shared(TILE * (TILE + 1), str(x.source.dtype), "tile") for x in turned]

    def block(b: Expr) -> list[tirx.Stmt]:
        column, rest = simplify(tirx.floormod(b, columns)), simplify(tirx.floordiv(b, columns))
        top, left = simplify(tirx.floormod(rest, rows) * index(TILE)), simplify(column * index(TILE))
        outer = simplify(tirx.floordiv(rest, rows))
        at = dict(zip((nest.axes[i] for i in others), unravel(outer, [nest.extents[i] for i in others])))

        def thread(y: Expr, x: Expr) -> list[tirx.Stmt]:
            def here(i: Expr, j: Expr) -> dict[ir.Var, Expr]:
                return at | {nest.axes[swapped]: simplify(top + i), nest.axes[last]: simplify(left + j)}

            def inside(i: Expr, j: Expr, stmt: tirx.Stmt) -> tirx.Stmt:
                """Where tiles may stand over the edge, only elements of the output are touched."""
                beyond = [
                    place < extent
                    for place, extent in ((top + i, down), (left + j, across))
                    if constant(extent) is None or constant(extent) % TILE
                ]
                for condition in beyond:
                    stmt = tirx.IfThenElse(condition, stmt, None)
                return stmt

            def read(step: Expr) -> list[tirx.Stmt]:
                j = simplify(y + step * index(_HEIGHT))
                copies = [
                    tirx.BufferStore(tile, tirx.BufferLoad(load.source, _at(load.indices, here(x, j))), [_place(j, x)])
                    for load, tile in zip(turned, tiles)
                ]
                return [inside(x, j, seq(copies))]

            def write(step: Expr) -> list[tirx.Stmt]:
                i = simplify(y + step * index(_HEIGHT))
                value = read_from(nest.value, zip(turned, tiles), _place(x, i))
                return [inside(i, x, store_at(replace(nest, value=value), here(i, x)))]

            steps = TILE // _HEIGHT
            return [unrolled("step", steps, read), unrolled("step", steps, write)]

        allocated = [tirx.AllocBuffer(tile) for tile in tiles]
        threads = bound(
            "threadIdx.y", _HEIGHT, lambda y: [bound("threadIdx.x", TILE, lambda x: [*allocated, *thread(y, x)])]
        )
        return [threads]

    return bound("blockIdx.x", simplify(product([nest.extents[i] for i in others]) * rows * columns), block)


def _place(row: Expr, column: Expr) -> Expr:
    return simplify(row * index(TILE + 1) + column)


def _at(indices: Sequence[Expr], here: Mapping[ir.Var, Expr]) -> list[Expr]:
    return [simplify(substituted(i, here)) for i in indices]
