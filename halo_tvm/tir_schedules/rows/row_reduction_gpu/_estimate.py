"""What a decision about rows should cost on a GPU: its traffic, or what the passes of a row wait for each other."""

from __future__ import annotations

from ....dimensions import itemsize_of
from ....targets import WARP, Target
from ...code.threads import LAUNCH_US, streaming_us
from ...rule import gpu_of
from ..stages import Rows, passes
from ._fit import KEPT, RowThreads, streams


def estimate_us(rows: Rows, target: Target, d: RowThreads, count: int, depth: int) -> float:
    """Microseconds for `count` rows of `depth` elements: traffic, or what the passes of a row wait for each other."""
    gpu, groups = gpu_of(target), passes(rows)
    of_row = sum(itemsize_of(b.dtype) for b in dict.fromkeys(streams(rows)))
    narrow = d.lanes * min((itemsize_of(b.dtype) for b in streams(rows)), default=4)
    steps = -(-depth // (d.lanes * d.threads))
    kept = min(steps * d.lanes, 2 * KEPT) if d.keep else 0
    blocks = -(-count // d.rows)
    waves = -(-blocks // gpu.blocks_at_once(d.threads * d.rows, min(32 + kept, gpu.registers_per_thread)))
    elements = sum(1 for group in groups for n in group if rows.stages[n].depth is not None)
    read_again = 0 if d.keep else max(0, len(groups) - 1)
    # Latencies in us: of memory 0.5, of a cache 0.15, of a warp's shuffles 0.1, of a barrier 0.15, of an element 0.01.
    meeting = sum(rows.stages[n].operation is not None for group in groups for n in group)
    waiting = 0.5 + 0.15 * read_again + meeting * (0.1 + (0.15 if d.threads > WARP else 0.0))
    waiting += 0.01 * steps * d.lanes * elements
    traffic = count * depth * of_row * (1.0 + 0.25 * read_again)
    return max(streaming_us(target, traffic, lanes_bytes=narrow), LAUNCH_US + waves * waiting)
