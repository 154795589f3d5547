"""Injective functions that swap the contiguous axis and read several places: values are turned, not what they are of.

y[i, j] = f(x[p(j), i], x[q(j), i])   ->   for tiles of W x W: for each j a vector of values along i, whose loads are
                                           contiguous; the W vectors turned in registers; W stores along j
                                           odd edges: the same vectors, as many and as long as are left, by a scratch
Interpolated images with their channels last, which leave with their channels first, are such.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from ...register_tiles import WIDTHS, turned
from ..blocks import loads, uses
from ..code.lanes import ceil_div, constant, index, is_var, loop, parallel_rows, run, seq, simplify
from ..code.lets import hoist_lets
from ._tiles import is_conditional, row_of_tiles, rows_of_tiles
from .nest import Nest, bits, substituted


def has_values_to_turn(nest: Nest, lanes: int, swapped: int) -> bool:
    """Whether every load is contiguous along axis `swapped` or does not move with it."""
    across = nest.axes[swapped]
    if lanes not in WIDTHS or bits(nest.output) != 32 or is_conditional(nest.value):
        return False
    if not is_var(nest.indices[-1], nest.axes[-1]):
        return False
    moving = [x.indices for x in loads(nest.value) if any(uses(i, across) for i in x.indices)]
    return all(is_var(i[-1], across) and not any(uses(j, across) for j in i[:-1]) for i in moving)


def turned_values(nest: Nest, lanes: int, tasks: int, parallel: bool, swapped: int) -> tirx.Stmt:
    """Tiles of `lanes` x `lanes` over axis `swapped` and the last axis, a row of tiles a task."""
    last = len(nest.axes) - 1
    down, across = nest.extents[swapped], nest.extents[last]
    scratch = tirx.decl_buffer([index(lanes**2)], str(nest.output.dtype), name="turned")

    def row(r: Expr) -> list[tirx.Stmt]:
        first, at, top = row_of_tiles(nest, swapped, lanes, r)

        def value(i: Expr, j: Expr) -> Expr:
            here = at | {nest.axes[swapped]: simplify(top + i), nest.axes[last]: simplify(j)}
            return hoist_lets(substituted(nest.value, here))

        def store(i: Expr, j: Expr, stored: Expr, width: int = 1) -> tirx.Stmt:
            here = at | {nest.axes[swapped]: simplify(top + i), nest.axes[last]: simplify(j)}
            *outer, inner = [simplify(substituted(x, here)) for x in nest.indices]
            return tirx.BufferStore(nest.output, stored, [*outer, run(inner, width)])

        def values(left: Expr, height: Expr | int, j: Expr) -> tirx.Stmt:
            """Row j of the scratch: column left + j of the tile."""
            kind = tirx.ForKind.VECTORIZED if isinstance(height, int) else tirx.ForKind.SERIAL
            slot = simplify(j * index(lanes))
            return loop("i", height, lambda i: [scratch_at(simplify(slot + i), value(i, left + j))], kind)

        def scratch_at(place: Expr, stored: Expr) -> tirx.Stmt:
            return tirx.BufferStore(scratch, stored, [place])

        def whole(t: Expr) -> list[tirx.Stmt]:
            left = simplify(t * index(lanes))
            made = [values(left, lanes, index(j)) for j in range(lanes)]
            rows = [tirx.BufferLoad(scratch, [tirx.Ramp(index(j * lanes), index(1), lanes)]) for j in range(lanes)]
            bound, columns = turned(rows, str(nest.output.dtype))
            return [*made, *bound, *(store(index(i), left, column, lanes) for i, column in enumerate(columns))]

        def part(left: Expr, height: Expr | int, width: Expr | int) -> list[tirx.Stmt]:
            kind = tirx.ForKind.VECTORIZED if isinstance(width, int) else tirx.ForKind.SERIAL

            def back(i: Expr) -> list[tirx.Stmt]:
                def element(j: Expr) -> list[tirx.Stmt]:
                    return [store(i, left + j, tirx.BufferLoad(scratch, [simplify(j * index(lanes) + i)]))]

                return [loop("j", width, element, kind)]

            return [loop("j", width, lambda j: [values(left, height, j)]), loop("i", height, back)]

        def tiles(height: Expr | int) -> list[tirx.Stmt]:
            count, rest = (simplify(f(across, index(lanes))) for f in (tirx.floordiv, tirx.floormod))
            out = []
            if constant(count) != 0:
                full = isinstance(height, int) and height == lanes
                out.append(
                    loop("tile", count, whole if full else lambda t: part(simplify(t * index(lanes)), height, lanes))
                )
            if constant(rest) != 0:
                out += part(simplify(count * index(lanes)), height, constant(rest) or rest)
            return out

        left_over = simplify(tirx.floormod(down, index(lanes)))
        if constant(left_over) == 0:
            return [*first, *tiles(lanes)]
        ends = tiles(constant(left_over) or left_over)
        if constant(ceil_div(down, lanes)) == 1:
            return [*first, *ends]
        return [*first, tirx.IfThenElse(top + index(lanes) <= down, seq(tiles(lanes)), seq(ends))]

    return parallel_rows(rows_of_tiles(nest, swapped, lanes), tasks, parallel, row, lambda: [tirx.AllocBuffer(scratch)])
