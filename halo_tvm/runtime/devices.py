"""Where a session's kernels run, and how its tensors get there and back: this host here, a GPU in `gpu.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import tvm_ffi

CPU, POOLED = 1, 2  # of the virtual machine's initialisation: DLPack's device type, its allocator
Tensors = Sequence[tvm_ffi.Tensor]
T = TypeVar("T")


class Device(Protocol):
    """What a session asks of the place its kernels run at. Tensors from and for the caller lie in host memory."""

    def machine(self, library: tvm_ffi.Module) -> tvm_ffi.Module:
        """A new virtual machine over a loaded library."""

    def keep(self, tensors: Tensors) -> tuple[tvm_ffi.Tensor, ...]:
        """`tensors` where kernels read them: weights, and inputs of runs that are timed."""

    def task(self, main: Callable[..., object], inputs: Tensors, weights: Tensors) -> Callable[[], object]:
        """One run for the session's thread; it gives outputs in host memory. Inputs are on their way when this returns,
        perhaps beside an earlier run."""

    def alone(self, task: Callable[[], T]) -> Callable[[], T]:
        """Whatever else the session's thread is asked for, with nothing else of the process on the device meanwhile."""

    def synchronize(self) -> None:
        """Wait until everything that was launched is done."""


class HostDevice:
    """Kernels on this machine's CPUs: tensors are where they are needed, a call returns when it is done."""

    def machine(self, library: tvm_ffi.Module) -> tvm_ffi.Module:
        machine: tvm_ffi.Module = library["vm_load_executable"]()
        machine["vm_initialization"](CPU, 0, POOLED)
        return machine

    def keep(self, tensors: Tensors) -> tuple[tvm_ffi.Tensor, ...]:
        return tuple(tensors)

    def task(self, main: Callable[..., object], inputs: Tensors, weights: Tensors) -> Callable[[], object]:
        return lambda: main(*inputs, *weights)

    def alone(self, task: Callable[[], T]) -> Callable[[], T]:
        return task

    def synchronize(self) -> None:
        """A call has done all of its work when it returns."""
