"""NVIDIA GPUs from compute capability 8.0 on."""

from ._target import Isa, TargetSpec
from .gpu_levels import STATIC_SHARED_BYTES, THREADS_PER_BLOCK, WARP, GpuLevel, portable_shared_bytes

_AMPERE = ("float16", "bfloat16", "tf32", "int8", "int4")
_ADA = (*_AMPERE, "float8_e4m3fn", "float8_e5m2")
_HOPPER = ("float16", "bfloat16", "tf32", "int8", "float8_e4m3fn", "float8_e5m2")


def _level(arch: str, gpu: GpuLevel) -> Isa:
    # Vector width is that of one thread's widest load (float4); a thread addresses 255 registers.
    # No CPU has the flag: a host without CUDA support in its runtime refuses the library by name.
    return Isa(
        arch,
        "",
        (),
        frozenset({"nvidia_gpu"}),
        vector_bits=128,
        vector_registers=gpu.registers_per_thread,
        precisions=("fp16", "bf16"),
        keys=(("arch", arch),),
        gpu=gpu,
    )


def _limits(arch: str, shared_kib: int, threads: int, blocks: int) -> dict[str, int]:
    """Limits of a multiprocessor, and of a block that runs on all GPUs which the level's libraries are for."""
    return {
        "shared_bytes_per_block": portable_shared_bytes(arch),
        "shared_bytes_per_multiprocessor": shared_kib << 10,
        "threads_per_multiprocessor": threads,
        "blocks_per_multiprocessor": blocks,
    }


CUDA = TargetSpec(
    name="cuda",
    description="NVIDIA GPUs, compute capability 8.0 or newer",
    kind="cuda",
    machine="gpu",
    isas=(
        _level(
            "sm_80",
            GpuLevel(
                **_limits("sm_80", shared_kib=164, threads=2048, blocks=32),
                tensor_core_dtypes=(*_AMPERE, "float64"),
                tensor_core_instructions=("mma.sync",),
                copies=("cp.async",),
                device="A100 40 GB",
                multiprocessors=108,
                clock_ghz=1.41,
                half_flops_per_cycle=2048,
                l2_bytes=40 << 20,
                memory_gbps=1555,
            ),
        ),
        _level(
            "sm_86",
            GpuLevel(
                **_limits("sm_86", shared_kib=100, threads=1536, blocks=16),
                tensor_core_dtypes=_AMPERE,
                tensor_core_instructions=("mma.sync",),
                copies=("cp.async",),
                device="GeForce RTX 3090",
                multiprocessors=82,
                clock_ghz=1.70,
                half_flops_per_cycle=512,
                l2_bytes=6 << 20,
                memory_gbps=936,
            ),
        ),
        _level(
            "sm_89",
            GpuLevel(
                **_limits("sm_89", shared_kib=100, threads=1536, blocks=24),
                tensor_core_dtypes=_ADA,
                tensor_core_instructions=("mma.sync",),
                copies=("cp.async",),
                device="GeForce RTX 4090",
                multiprocessors=128,
                clock_ghz=2.52,
                half_flops_per_cycle=512,
                l2_bytes=72 << 20,
                memory_gbps=1008,
            ),
        ),
        _level(
            "sm_90",
            GpuLevel(
                **_limits("sm_90", shared_kib=228, threads=2048, blocks=32),
                tensor_core_dtypes=(*_HOPPER, "float64"),
                tensor_core_instructions=("mma.sync", "wgmma"),
                copies=("cp.async", "tma"),
                device="H100 SXM",
                multiprocessors=132,
                clock_ghz=1.83,
                half_flops_per_cycle=4096,
                l2_bytes=50 << 20,
                memory_gbps=3352,
            ),
        ),
        _level(
            "sm_100",
            GpuLevel(
                **_limits("sm_100", shared_kib=228, threads=2048, blocks=32),
                tensor_core_dtypes=(*_HOPPER, "float6_e2m3fn", "float4_e2m1fn", "float64"),
                tensor_core_instructions=("mma.sync", "tcgen05"),
                copies=("cp.async", "tma"),
                device="B200",
                multiprocessors=148,
                clock_ghz=1.85,
                half_flops_per_cycle=8192,
                l2_bytes=126 << 20,
                memory_gbps=8000,
            ),
        ),
    ),
    rules=(
        "decode_attention_gpu",
        "flash_attention_gpu",
        "gemv",
        "tensor_core_gemm",
        "row_reduction_gpu",
        "elementwise_gpu",
        "dlight_matmul",
        "dlight_general_reduction",
        "dlight_reduction",
        "fallback_gpu",
    ),
    runs_on=frozenset(),
    precision="fp16",
    gpu=True,
    # TVM's own rules allocate statically, so they see what a block has without the opt-in.
    extra={
        "max_threads_per_block": THREADS_PER_BLOCK,
        "max_num_threads": THREADS_PER_BLOCK,
        "thread_warp_size": WARP,
        "max_shared_memory_per_block": STATIC_SHARED_BYTES,
        "registers_per_block": 64 << 10,
    },
)
