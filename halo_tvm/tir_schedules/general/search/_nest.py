"""The loops around the tiles of a reduction.

Before -> after
    for i, j: for k   ->   parallel for runs of tiles of i, j: totals of the tile in registers: for k
The last tile along an iterator begins early enough to be whole, so that there is code for one size of tile only: what
two tiles share is computed twice, to the same values. A symbolic extent that holds no whole tile gets smaller ones.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx
from tvm.ir import Expr

from ...code.lanes import ceil_div, constant, in_parallel_when_large, index, parallel_rows, product, simplify, unravel
from ._decision import NONE, Decision, Tiling
from ._program import Reduction
from ._tile import Tile


def nest_of(reduction: Reduction, tiling: Tiling, decision: Decision) -> tirx.Stmt:
    """The statement that computes `reduction`."""
    work = product([extent for _, extent in reduction.iterators])
    return in_parallel_when_large(
        work, decision.serial_below, lambda parallel: _sized(reduction, tiling, decision.tasks, parallel)
    )


def _sized(reduction: Reduction, tiling: Tiling, tasks: int, parallel: bool) -> tirx.Stmt:
    """Whole tiles where the extents hold one, else narrower ones, else single elements."""
    statement = None
    for smaller in reversed(list(dict.fromkeys(_sizes(reduction, tiling)))):
        here = _tiles(reduction, smaller, tasks, parallel)
        statement = here if statement is None else tirx.IfThenElse(_holds(reduction, smaller), here, statement)
    assert statement is not None
    return statement


def _sizes(reduction: Reduction, tiling: Tiling) -> list[Tiling]:
    """`tiling` first; the last fits into every extent."""
    symbolic = [n for n in (tiling.vector, tiling.row) if n != NONE and n < len(reduction.axes)]
    symbolic = [n for n in symbolic if constant(reduction.extents[n]) is None]
    if not symbolic:
        return [tiling]
    if tiling.vector not in symbolic:
        return [tiling, replace(tiling, height=1)]
    narrow = replace(tiling, vectors=1, height=1 if tiling.row in symbolic else tiling.height)
    return [tiling, narrow, replace(narrow, lanes=1)]


def _holds(reduction: Reduction, tiling: Tiling) -> Expr:
    """Whether the extents hold a whole tile."""
    out: Expr = tirx.const(True, "bool")
    for axis, size in _tiled(reduction, tiling).items():
        if constant(reduction.extents[axis]) is None:
            out = tirx.And(out, reduction.extents[axis] >= index(size))
    return out


def _tiled(reduction: Reduction, tiling: Tiling) -> dict[int, int]:
    """Axes of which a tile holds several, and how many."""
    sizes = {} if tiling.is_partial(reduction) else {tiling.vector: tiling.lanes * tiling.vectors}
    sizes[tiling.row] = tiling.height
    return {axis: size for axis, size in sizes.items() if axis != NONE}


def _tiles(reduction: Reduction, tiling: Tiling, tasks: int, parallel: bool) -> tirx.Stmt:
    sizes = _tiled(reduction, tiling)
    counts = [ceil_div(e, sizes.get(n, 1)) for n, e in enumerate(reduction.extents)]

    def tile(number: Expr) -> list[tirx.Stmt]:
        starts: dict[ir.Var, Expr] = {}
        named: list[tirx.Stmt] = []  # many places are made of them

        def name(value: Expr, called: str) -> Expr:
            if isinstance(value, (tirx.IntImm, ir.Var)):
                return value
            named.append(tirx.Bind(tirx.Var(called, "int64"), value))
            return named[-1].var

        # TVM folds divisions under the conditions around them, where it can come to hold a divisor for zero.
        divisors = [c if constant(c) else name(tirx.max(c, index(1)), "tiles") for c in counts]
        for n, at in enumerate(unravel(name(number, "tile"), divisors)):
            size, extent = sizes.get(n, 1), reduction.extents[n]
            known = constant(extent)
            whole = size == 1 or known is not None and known % size == 0
            start = at * index(size) if whole else tirx.min(at * index(size), extent - index(size))
            starts[reduction.axes[n]] = name(simplify(start), "first")
        return [*named, *Tile(reduction, tiling, starts).statements()]

    return parallel_rows(product(counts), tasks, parallel, tile, list)
