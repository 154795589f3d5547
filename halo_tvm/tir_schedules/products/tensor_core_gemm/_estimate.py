"""What a cut should cost in time: an order of cuts, not a prediction. Nothing in it has been measured on a GPU.

time = max(memory,  blocks of the busiest multiprocessor * cycles of a block)
cycles of a block = start + steps * slowest of (products, shared memory, L2) / share of it that warps keep busy
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....dimensions import itemsize_of
from ....targets import WARP
from ...code.threads import LAUNCH_US
from .._product import Product
from ._rounding import rounds_first
from ._tiling import Tiling

if TYPE_CHECKING:
    from ....targets.gpu_levels import GpuLevel

_SHARED_BYTES_PER_CYCLE = 128
_L2_BYTES_PER_CYCLE = 48  # of one multiprocessor while all of them read
_LATENCY = 700  # cycles until the first data of a block are there
_STORE = 400  # cycles of a block's last stages beside the copies of another
_BUSY_WARPS = 8  # warps of a multiprocessor that keep its tensor cores busy


def estimate(product: Product, t: Tiling, rows: int, gpu: GpuLevel) -> float:
    """Microseconds of the kernel at so many rows."""
    blocks = -(-max(rows, 1) // t.block_m) * -(-product.n // t.block_n)
    steps = -(-product.k // t.block_k)
    # A multiprocessor works on `resident` blocks at once: together they are as fast as one after another, or faster.
    waiting = -(-blocks // gpu.multiprocessors)
    at_once = max(1, min(t.resident(gpu), waiting))
    busy = min(1.0, at_once * t.warps / _BUSY_WARPS) * min(1.0, 0.6 + 0.15 * (t.stages - 1))
    cycles = waiting * steps * _step_cycles(t, gpu) / busy + -(-waiting // at_once) * (_LATENCY + _STORE)
    moved = (
        rows * product.k * itemsize_of(t.x_dtype)
        + product.n * product.k * itemsize_of(t.weight_dtype)
        + sum(rows * product.n * itemsize_of(out.ty.dtype) for out in product.outputs)
    )
    first = LAUNCH_US + rows * product.k * 6 / gpu.memory_gbps * 1e-3 if rounds_first(product) else 0.0
    return first + LAUNCH_US + max(moved / gpu.memory_gbps * 1e-3, cycles / gpu.clock_ghz * 1e-3)


def _step_cycles(t: Tiling, gpu: GpuLevel) -> float:
    """Of one block_k, when nothing is waited for."""
    copied = t.x_tile.size_bytes + t.weight_tile.size_bytes
    m, n = t.warp_tile
    read = t.warps * t.block_k * (m * itemsize_of(t.x_dtype) + n * itemsize_of(t.weight_dtype))
    products = 2 * t.block_m * t.block_n * t.block_k / gpu.half_flops_per_cycle
    rounded = t.block_k * m * t.warps / (2 * WARP) if t.x_dtype != t.weight_dtype else 0
    return max(products + rounded, (copied + read) / _SHARED_BYTES_PER_CYCLE, copied / _L2_BYTES_PER_CYCLE)
