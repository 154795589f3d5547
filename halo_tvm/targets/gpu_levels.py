"""What a level of an NVIDIA GPU offers a kernel, and how many of its blocks fit at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..cuda.arch import capability

WARP = 32
STATIC_SHARED_BYTES = 48 << 10  # of one block without the opt-in at launch, on every level
THREADS_PER_BLOCK = 1024
# KiB of one block with the opt-in, by compute capability.
_SHARED_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
_RESERVED_SHARED_BYTES = 1 << 10  # what the system takes of each block's shared memory
_REGISTER_UNIT = 256  # registers are handed to warps in pieces of this many


@dataclass(frozen=True)
class GpuLevel:
    """Limits of one compute capability, and the device whose rates analytic models assume for it."""

    shared_bytes_per_block: int  # dynamic ("shared.dyn"), with the opt-in at launch; see `portable_shared_bytes`
    shared_bytes_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    tensor_core_dtypes: tuple[str, ...]  # of the operands, as TVM names them; tf32 is float32 with 10 bits of mantissa
    tensor_core_instructions: tuple[str, ...]  # wgmma and tcgen05 need the arch's own code ("sm_90a")
    copies: tuple[str, ...]  # from global to shared memory beside loads and stores: "cp.async", "tma"
    device: str  # whose figures follow
    multiprocessors: int
    clock_ghz: float
    half_flops_per_cycle: int  # of one multiprocessor: dense products of 16 bits, summed in float32
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

    def blocks_at_once(self, threads: int, registers: int, shared_bytes: int = 0) -> int:
        """Blocks that the device holds, for models: where none fits, one of each multiprocessor."""
        return max(1, self.resident_blocks(threads, registers, shared_bytes)) * self.multiprocessors


def shared_bytes(gpu: str) -> int:
    """What one block of a GPU of compute capability `gpu` may have; of one that is not known, the least of all."""
    return _SHARED_KIB.get(capability(gpu), min(_SHARED_KIB.values())) << 10


def portable_shared_bytes(arch: str) -> int:
    """What a block of a kernel for `arch` may use: as much as every later GPU of its generation has.

    A library for sm_80 is for the GeForce cards of sm_86 and sm_89, too: their blocks have 99 KiB, those of the A100
    itself 163.
    """
    number = capability(arch)
    later = [kib for known, kib in _SHARED_KIB.items() if known >= number and known // 10 == number // 10]
    return min(later) << 10 if later else shared_bytes(arch)


def runs_code_of(gpu: str, arch: str) -> bool:
    """Whether a GPU of compute capability `gpu` runs a library built for `arch`.

    Machine code serves later GPUs of its generation, the PTX beside it every later one whose blocks have as much
    shared memory as kernels for `arch` may use; code of an arch of its own ("sm_90a") has no such PTX and serves that
    GPU alone.
    """
    if not arch[-1:].isdigit():
        return capability(gpu) == capability(arch)
    return capability(gpu) >= capability(arch) and shared_bytes(gpu) >= portable_shared_bytes(arch)
