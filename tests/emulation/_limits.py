"""What CUDA refuses to launch, whatever the kernel computes."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from halo_tvm.cuda.launches import STATIC, shared_bytes
from halo_tvm.targets import LAUNCH_LIMITS, STATIC_SHARED_BYTES, THREADS_PER_BLOCK, Target

from ._fault import KernelFault
from ._lanes import Launch

_DYNAMIC_BYTES = "tirx.use_dyn_shared_memory"  # TVM's name of a launch parameter


def check_launch(name: str, kernel: tirx.PrimFunc, extents: Mapping[str, int], target: Target) -> None:
    """A `KernelFault` when no GPU of `target`'s level launches `kernel` with these parameters."""
    for tag, most in LAUNCH_LIMITS.items():
        if not 1 <= extents.get(tag, 1) <= most:
            raise KernelFault(f"{name} is launched with a {tag} of {extents[tag]}, and CUDA takes 1 to {most}")
    threads = Launch(extents).threads
    if threads > THREADS_PER_BLOCK:
        raise KernelFault(f"{name} is launched with {threads} threads in a block, and CUDA takes {THREADS_PER_BLOCK}")
    static = shared_bytes(kernel, STATIC)
    if static > STATIC_SHARED_BYTES:
        raise KernelFault(
            f"{name} has {static} bytes of static shared memory in a block, and CUDA takes {STATIC_SHARED_BYTES}: "
            "allocate it in shared.dyn"
        )
    whole, most = static + extents.get(_DYNAMIC_BYTES, 0), target.isa.gpu.shared_bytes_per_block
    if whole > most:
        raise KernelFault(
            f"{name} asks for {whole} bytes of shared memory in a block, and {target.isa.name} has {most}: "
            "choose smaller tiles"
        )
