"""NVIDIA GPUs from compute capability 8.0 on."""

from ._target import Isa, TargetSpec


def _level(arch: str) -> Isa:
    # Vector width is that of one thread's widest load (float4); a thread addresses 255 registers.
    # No CPU has the flag: a host without CUDA support in its runtime refuses the library by name.
    return Isa(arch, "", (), frozenset({"nvidia_gpu"}), vector_bits=128, vector_registers=255, keys=(("arch", arch),))


CUDA = TargetSpec(
    name="cuda",
    description="NVIDIA GPUs, compute capability 8.0 or newer",
    kind="cuda",
    machine="gpu",
    isas=tuple(_level(arch) for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100")),
    rules=("fallback_gpu",),
    runs_on=frozenset(),
    gpu=True,
    # The static shared memory of every level; more needs an opt-in at launch that no rule asks for yet.
    extra={
        "max_threads_per_block": 1024,
        "max_num_threads": 1024,
        "thread_warp_size": 32,
        "max_shared_memory_per_block": 48 << 10,
        "registers_per_block": 64 << 10,
    },
)
