"""What the assembler says about each kernel: registers, spills, stack, shared memory."""

from __future__ import annotations

import re

from ..phase_reports import DeviceKernel

# Lines of `ptxas --verbose`, in this order for every kernel.
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_BOUNDS = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s+)?(\w+)\s*\(")


def read_log(log: str, source: str, dynamic_shared: dict[str, int]) -> tuple[DeviceKernel, ...]:
    """The kernels in a log of `ptxas --verbose`, by name; `source` and `dynamic_shared` add what it cannot know."""
    bounds = {name: int(threads or 0) for threads, name in _BOUNDS.findall(source)}
    parts = _ENTRY.split(log)[1:]  # name, arch, text, name, arch, text, ...
    kernels = {}
    for name, text in zip(parts[::3], parts[2::3]):
        stack, used = _STACK.search(text), _USED.search(text)
        if not stack or not used:
            continue
        barriers, shared = _BARRIERS.search(text), _SHARED.search(text)
        kernels[name] = DeviceKernel(
            name=name,
            threads=bounds.get(name, 0),
            registers=int(used[1]),
            spill_store_bytes=int(stack[2]),
            spill_load_bytes=int(stack[3]),
            stack_bytes=int(stack[1]),
            shared_bytes=int(shared[1]) if shared else 0,
            dynamic_shared_bytes=dynamic_shared.get(name, 0),
            barriers=int(barriers[1]) if barriers else 0,
        )
    return tuple(kernels[name] for name in sorted(kernels))
