"""The nest of a convolution of bytes in AMX's registers.

    parallel for task = (block of windows, group, share of the panels):
        the windows of the block as rows of a matrix, unless they lie in x as that
        for panels of the share:
            for tiles of up to 32 windows:
                windows x panel, in registers of two dimensions
                for each window: all stages, vector by vector
The matrix of a block stays in L2: a product takes so little time that addresses for every element would take longer.
"""

from __future__ import annotations

import math
from contextlib import ExitStack

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ...code.lanes import constant, index, kept, simplify, unravel
from ...code.nests import run_at
from ...code.tile_registers import Matrix, Product, multiply, release
from ...products.gemm.amx import InTiles
from ...products.row_tiling import RowTiling
from ._copy import Padded
from ._problem import Problem
from ._store import store

_COPIED = (64, 16, 4)  # bytes at once


def emit_in_tiles(problem: Problem, x: Padded, rows: RowTiling, lanes: int) -> None:
    p, w = problem, problem.windows
    arithmetic, depth = p.arithmetic, p.run * math.prod(p.taps)
    assert isinstance(arithmetic, InTiles), f"{type(arithmetic).__name__} is not computed in these registers"
    m = w.rows if constant(w.rows) is None else constant(w.rows)
    blocks, shares = rows.blocks(m), _shares(p, rows)
    with T.parallel(simplify(index(0) + blocks * (p.groups * shares))) as task:
        share, group = kept(task % shares), kept(task // shares % p.groups)
        top, height = (kept(simplify(index(0) + v)) for v in rows.rows_of(m, task // (shares * p.groups), blocks))
        sums = T.alloc_buffer((rows.mr, p.nr), arithmetic.total, align=64)
        matrix, first = None, top
        if not _is_matrix(p):
            matrix, first = T.alloc_buffer((2 * rows.block_rows + rows.mr, depth), p.dtype, align=64), index(0)
            _gather(p, x, matrix, top, height, group)
        begin, end = (kept((share + more) * p.panels // shares) for more in (0, 1))
        with T.serial(end - begin) as each, T.serial((height + (rows.mr - 1)) // rows.mr) as tile:
            panel, at = kept(begin + each), kept(tile * rows.mr)
            count = kept(tirx.min(height - at, index(rows.mr)))
            product = Product(
                arithmetic.instruction,
                x=Matrix(lambda row, step: _row(p, x, matrix, first + at + row, step * arithmetic.of_step), depth),
                weight=Matrix(lambda step, column: p.weight[group, panel, step, column, 0], 4 * p.nr),
                sums=Matrix(lambda row, column: sums[row, column], 4 * p.nr),
                steps=depth // arithmetic.group,
                columns=p.nr,
            )
            multiply(product, count, range(1, rows.mr + 1), continued=False)
            store(p, sums, top + at, count, panel, group, lanes)
        release(sums, *([matrix] if matrix is not None else []))


def _shares(p: Problem, rows: RowTiling) -> int:
    """In how many shares the panels are walked: one, unless there are too few blocks of windows for the cores."""
    places = [constant(extent) or 1 for extent in (p.windows.batch, *p.windows.places)]
    blocks = rows.blocks(math.prod(places))
    assert isinstance(blocks, int), "sizes that are known give a number of blocks"
    return 1 if blocks * p.groups >= rows.cores else min(p.panels, rows.cores)


def _is_matrix(p: Problem) -> bool:
    """Whether windows are rows of a matrix as x, or its copy, lies: of one element each, one behind the other."""
    return p.groups == 1 and all(size == 1 for size in (*p.windows.kernel, *p.windows.strides))


def _row(p: Problem, x: Padded, matrix: ir.Var | None, row: ir.Expr, at: ir.Expr) -> ir.TensorLoad:
    """Element `at` of window `row`, in the matrix of a block or in x."""
    if matrix is not None:
        return matrix[row, at]
    return x.buffer[(*unravel(row, [p.windows.batch, *x.sizes]), at)]


def _gather(p: Problem, x: Padded, matrix: ir.Var, top: ir.Expr, height: ir.Expr, group: ir.Expr) -> None:
    """Copy `height` windows from `top` on, each into a row."""
    w = p.windows
    with T.serial(height) as row:
        n, *place = (kept(at) for at in unravel(simplify(top + row), [w.batch, *w.places]))
        with ExitStack() as loops:
            ks = [loops.enter_context(T.serial(index(extent))) for extent in p.taps]
            tap = index(0)
            for k, extent in zip(ks, p.taps):
                tap = tap * extent + k
            ks += [index(0)] * (w.rank - len(ks))
            at = [o * w.strides[a] - x.before[a] + k * w.dilations[a] for a, (o, k) in enumerate(zip(place, ks))]
            run = run_at(tirx.address_of(x.buffer[(n, *at, group * p.inner)]), (p.run,), p.dtype, "window")
            first = 0
            for width in _COPIED:
                number = (p.run - first) // width
                with T.serial(index(number)) as v, T.vectorized(index(width)) as lane:
                    here = first + v * width + lane
                    T.buffer_store(matrix, run[here], [row, tap * p.run + here])
                first += number * width
