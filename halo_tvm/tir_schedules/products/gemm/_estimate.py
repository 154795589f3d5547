"""What a tiling should cost: inner loops, tiles that do not fill, cores that wait, weights that stream.

The numbers are cycles of a core with two load ports and a fused multiply-add latency of four. Only their
order for one function is used, so one set of them serves every CPU with vectors.
"""

from __future__ import annotations

from ..row_tiling import slowest_core
from .chain import Chain
from .tiling import Tiling

_LATENCY = 4.0  # of a fused multiply-add, or an addition: with fewer independent sums the unit waits
_FMA_PER_CYCLE = 1.0
_LOADS_PER_CYCLE = 2.0
_L2_BYTES_PER_CYCLE = 32.0  # the panel comes from there
_OWN_BYTES_PER_CYCLE = 8.0  # of a panel that one core reads first: from memory, or a cache of several cores
_EXPOSED = 0.1
_LOOP = 1.0  # counter, compare and branch of one iteration of the k loop
_TILE = 40.0  # switching on the height, addresses, clearing the sums
_TASK = 200.0
_LAUNCH = 2_000.0
_BYTES_PER_CYCLE = 8.0  # of weights from memory, all cores together
_CYCLES_PER_US = 3_000.0


def estimate(chain: Chain, tiling: Tiling, m: int, cores: int) -> float:
    """Microseconds at `m` rows."""
    heights = tiling.heights(m)
    # The slowest core decides, and it takes whole tasks.
    blocks = [sum(_tile(chain, tiling, rows) for rows in tiling.tile_heights(height)) + _TASK for height in heights]
    panels = chain.parts * chain.panels
    rounds = -(-panels * len(blocks) // cores)
    computing = max(panels * sum(blocks) / cores, rounds * max(blocks))
    # Every block of rows reads the panel again, from a nearer cache.
    streamed = chain.chunks * chain.panel_bytes * panels * (1 + 0.1 * (len(blocks) - 1))
    ahead = 0.98 if tiling.prefetch and m > tiling.mr else 1.0
    streaming = ahead * streamed / _BYTES_PER_CYCLE
    cycles = max(computing, streaming) + 0.1 * min(computing, streaming) + chain.chunks * _LAUNCH
    return cycles / _CYCLES_PER_US


def computing(chain: Chain, tiling: Tiling, m: int, cores: int) -> float:
    """Cycles of the slowest of many cores: each reads the panels of its tasks for itself, and computes meanwhile."""
    reading = chain.parts * chain.chunks * chain.panel_bytes / _OWN_BYTES_PER_CYCLE
    heights = tiling.heights(m)
    tiles = {height: sum(_tile(chain, tiling, rows) for rows in tiling.tile_heights(height)) for height in set(heights)}
    return slowest_core((max(chain.parts * tiles[height], reading) + _TASK for height in heights), chain.panels, cores)


def _tile(chain: Chain, t: Tiling, rows: int) -> float:
    """Cycles of one tile: its k loop, then its epilogue."""
    vectors = chain.vectors(t.lanes)
    lines = t.prefetch if 2 * rows > t.mr else 0
    bounds = (
        chain.arithmetic.instructions(rows, vectors) / _FMA_PER_CYCLE,
        _LATENCY,
        (chain.arithmetic.loads(rows, vectors) + lines / t.unroll) / _LOADS_PER_CYCLE,
        chain.panel_bytes / chain.steps / _L2_BYTES_PER_CYCLE,
    )
    # What is not the bottleneck hides behind it, but not all of it: taller tiles read the panel less often.
    step = max(bounds) + _EXPOSED * (bounds[2] + bounds[3])
    loop = chain.chunks * chain.steps * (step + 0.05 * (_LOOP + lines) / t.unroll)
    return loop + rows * vectors * (2.0 + 4.0 * len(chain.stages)) + _TILE
