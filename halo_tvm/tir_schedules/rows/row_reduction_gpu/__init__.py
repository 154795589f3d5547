"""Rows that are reduced along the last axis and mapped, on a GPU: softmax, norms, mean, sum, max, with what is fused.

Serves
    what `rows.stages` reads: blocks that share their leading loops (the rows) and have at most one more (the depth)
Before -> after
    for rows: for depth: a; for rows: for depth: b   ->   groups of `threads` threads, one for each row; `rows` of
    them in a block. Threads take vectors of `lanes` elements in turns; a reduction meets in a warp by shuffles,
    and beyond a warp through one number of each warp in shared memory.
    `keep`: what is read and made of a row stays in registers from pass to pass, so that memory is read once, and a
    variance of two passes costs no more than one of one. Else every pass reads the row again, out of the caches,
    and makes again what it needs: of rows that are too long, or whose length is known at run time only.
Numerics
    x / s becomes x * (1 / s) for a scalar s of the row: infinite where s is below 2**-128 in size (subnormal)
Declines
    see `rows.stages`; reductions of elements that no shuffle moves; no rows, or rows of no
    length, where that is known
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tvm import ir, tirx

from ....dimensions import by_name, size_of
from ....errors import Declined
from ....targets import WARP, Target
from ...code.lanes import constant, product, replace_body
from ...code.threads import vector_lanes
from ...rule import Numbers, Rule
from ._estimate import estimate_us
from ._fit import KEPT, MOST_THREADS, RowThreads, kept_registers, served, streams, unfit
from ._kernel import Kernel

_BLOCK = 128  # threads of a block of short rows: four warps hide each other's loads, and blocks end soon
_PER_THREAD = 4  # vectors of a long row: more threads would wait for each other longer than they save


class RowReductionGPU(Rule[RowThreads]):
    """Softmax, norms and reductions along the last axis, by warps or blocks of threads."""

    name = "row_reduction_gpu"
    Decision = RowThreads
    domains = {
        "threads": Numbers(1, MOST_THREADS),
        "rows": Numbers(1, 256),
        "lanes": Numbers(1, 16),
    }

    def default(self, func: tirx.PrimFunc, target: Target) -> RowThreads:
        rows = served(func)
        lanes = vector_lanes(streams(rows), rows.depth)
        depth = constant(rows.depth)
        if depth is None:
            return RowThreads(WARP, _BLOCK // WARP, 1, keep=False)
        vectors = depth // lanes
        threads = 8
        # A warp while its part of the row fits registers and is short; then as many as have some vectors each.
        most = WARP if vectors <= 2 * _PER_THREAD * WARP else MOST_THREADS
        while threads < most and vectors > threads * (1 if threads < WARP else _PER_THREAD):
            threads *= 2
        keep = kept_registers(rows, threads, lanes) <= KEPT
        return RowThreads(threads, max(1, _BLOCK // threads), lanes, keep)

    def space(self, func: tirx.PrimFunc, target: Target) -> Sequence[RowThreads]:
        base, rows = self.default(func, target), served(func)
        widths = [base.lanes // share for share in (1, 2, 4) if base.lanes // share]
        threads = [t for t in (8, 16, 32, 64, 128, 256, 512, 1024) if base.threads <= 4 * t and t <= 4 * base.threads]
        # Blocks of two to eight warps, or of one long row: smaller ones leave a multiprocessor's places empty.
        shapes = [(t, r) for t in threads for r in (1, 2, 4, 8, 16, 32) if 64 <= t * r <= 256 or t > 256 and r == 1]
        values = (RowThreads(*shape, *rest) for shape, *rest in itertools.product(shapes, widths, (True, False)))
        return tuple(dict.fromkeys([base, *(d for d in values if not unfit(rows, d))]))

    def estimate(self, func: tirx.PrimFunc, target: Target, decision: RowThreads, sizes: Mapping[ir.Var, int]) -> float:
        rows = served(func)
        known = by_name(sizes)
        count, depth = size_of(product(rows.extents), known), max(1, size_of(rows.depth, known))
        return estimate_us(rows, target, decision, count, depth)

    def apply(self, func: tirx.PrimFunc, target: Target, decision: RowThreads) -> tirx.PrimFunc:
        self.check(decision)
        rows = served(func)
        if reason := unfit(rows, decision):
            raise Declined(reason)
        return replace_body(func, Kernel(rows, decision).body())
