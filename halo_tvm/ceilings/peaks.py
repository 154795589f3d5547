"""A host's ceilings with some threads, and the least time they leave to a piece of work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    """What the host can do at most with so many threads. Bandwidths are GB/s (1e9 bytes) over all of them."""

    threads: int
    fma_gflops: float
    l2_gbps: float
    l3_gbps: float
    dram_gbps: float
    int8_gops: float | None  # of 8-bit dot products; None where the CPU has none
    l2_bytes: int  # of all these threads' cores together
    l3_bytes: int
    measured_at: str
    bf16_gflops: float | None = None  # of pairs of bfloat16; None where they are no faster, or were not measured

    def near_gbps(self, size_bytes: float) -> float:
        """The bandwidth of the smallest level that holds so many bytes; no level is slower than those behind it."""
        if size_bytes <= self.l2_bytes:
            return max(self.l2_gbps, self.l3_gbps, self.dram_gbps)
        return max(self.l3_gbps, self.dram_gbps) if size_bytes <= self.l3_bytes else self.dram_gbps


def least_us(
    peaks: Peaks,
    *,
    flops: float,
    narrow_flops: float,
    integer_ops: float,
    weight_bytes: float,
    other_bytes: float,
    weights_far: bool,
) -> tuple[float, str]:
    """(the least microseconds of some work; what sets them: "memory" or "compute").

    `narrow_flops` of `flops` may be done on operands of 16 bits, faster than others: by the peak of bfloat16, and where
    that is unknown arithmetic is no bound of theirs. `weights_far`: weights come from memory. All
    else comes from the smallest level that holds what is touched of it.
    """
    moving = weight_bytes / (peaks.dram_gbps if weights_far else peaks.near_gbps(weight_bytes))
    moving += other_bytes / peaks.near_gbps(other_bytes)
    computing = (flops - narrow_flops) / peaks.fma_gflops + integer_ops / (peaks.int8_gops or peaks.fma_gflops)
    # A disturbed measurement may have found pairs slower: what takes them may always be done in float32.
    computing += narrow_flops / max(peaks.bf16_gflops, peaks.fma_gflops) if peaks.bf16_gflops else 0.0
    return max(moving, computing) / 1e3, "memory" if moving >= computing else "compute"
