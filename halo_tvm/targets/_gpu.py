"""What a level of an NVIDIA GPU offers a kernel, and how many of its blocks fit at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..cuda.arch import capability

WARP = 32
STATIC_SHARED_BYTES = 48 << 10  # of one block without the opt-in at launch, on every level
_RESERVED_SHARED_BYTES = 1 << 10  # what the system takes of each block's shared memory
_REGISTER_UNIT = 256  # registers are handed to warps in pieces of this many


@dataclass(frozen=True)
class GpuLevel:
    """Limits of one compute capability, and the device whose rates analytic models assume for it."""

    shared_bytes_per_block: int  # dynamic ("shared.dyn"), with the opt-in at launch
    shared_bytes_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    tensor_core_dtypes: tuple[str, ...]  # of the operands, as TVM names them; tf32 is float32 with 10 bits of mantissa
    tensor_core_instructions: tuple[str, ...]  # wgmma and tcgen05 need the arch's own code ("sm_90a")
    copies: tuple[str, ...]  # from global to shared memory beside loads and stores: "cp.async", "tma"
    device: str  # whose figures follow
    multiprocessors: int
    clock_ghz: float
    l2_bytes: int
    memory_gbps: float
    registers_per_multiprocessor: int = 64 << 10
    registers_per_thread: int = 255

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int = 0) -> int:
        """Blocks of `threads` threads, each of `registers` registers, that one multiprocessor holds; 0: none fits."""
        warps = -(-threads // WARP)
        per_warp = -(-max(registers, 1) * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        shared = shared_bytes + _RESERVED_SHARED_BYTES
        if shared_bytes > self.shared_bytes_per_block or registers > self.registers_per_thread:
            return 0
        return min(
            self.blocks_per_multiprocessor,
            self.threads_per_multiprocessor // (warps * WARP),
            self.registers_per_multiprocessor // (warps * per_warp),
            self.shared_bytes_per_multiprocessor // shared,
        )


def runs_code_of(gpu: str, arch: str) -> bool:
    """Whether a GPU of compute capability `gpu` runs a library built for `arch`.

    Machine code serves later GPUs of its generation, the PTX beside it every later one; code of an arch
    of its own ("sm_90a") has no such PTX and serves that GPU alone.
    """
    own_code = not arch[-1:].isdigit()
    return capability(gpu) == capability(arch) if own_code else capability(gpu) >= capability(arch)
