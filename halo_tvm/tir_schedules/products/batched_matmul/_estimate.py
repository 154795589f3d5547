"""What a product should cost: sums, loads, packing. Only the order of decisions for one function counts."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir

from ...code.lanes import constant
from ._problem import Problem
from ._tiling import Tiling

_LOADS_PER_CYCLE = 2.0
_EXPOSED = 0.1  # of the loads that hide behind multiplications
_PACK = {False: 2.0, True: 8.0}  # cycles to pack one vector of b: a load and a store; shuffles as well
_STORE = 3.0  # cycles of a vector of sums: out of the block's sums, into the result
_TILE = 40.0
_TASK = 200.0
_CYCLES_PER_US = 3_000.0
_TYPICAL = 128  # columns where their number is symbolic


def cycles_per_column(problem: Problem, mr: int, vectors: int, lanes: int) -> float:
    """Cycles of a register tile in one step of k, for each row and each column that exists."""
    n, nr = constant(problem.n), vectors * lanes
    # A symbolic number of columns leaves half a panel empty on average.
    padded = (_TYPICAL + nr / 2) / _TYPICAL if n is None else -(-max(n, 1) // nr) * nr / max(n, 1)
    return padded * _step(mr, vectors) / (mr * nr)


def _step(rows: int, vectors: int) -> float:
    loads = (rows + vectors) / _LOADS_PER_CYCLE
    return max(rows * vectors, loads, 4.0) + _EXPOSED * loads


def estimate(problem: Problem, t: Tiling, sizes: Mapping[ir.Var, int]) -> float:
    """Microseconds at these values of the symbolic dimensions."""
    count, m, n, k = problem.sizes(sizes)
    panels, pieces = -(-n // t.nr), -(-k // t.kc)
    blocks = []
    for height in t.heights(m):
        tiles = t.tile_heights(height)
        steps = sum(_step(rows, t.vectors) * k + _TILE * pieces for rows in tiles)
        packing = _PACK[problem.b_transposed] * t.vectors * k if problem.b_transposed or height > t.mr else 0.0
        # Sums of the block wait in the cache between pieces of k.
        waiting = height * t.vectors * (_STORE * (1 + len(problem.stages)) + 2.0 * pieces)
        blocks.append(steps + packing + waiting + _TASK)
    rounds = -(-count * panels * len(blocks) // t.cores)
    return max(count * panels * sum(blocks) / t.cores, rounds * max(blocks, default=0.0)) / _CYCLES_PER_US
