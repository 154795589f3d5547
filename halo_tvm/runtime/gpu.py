"""An NVIDIA GPU under a session: weights stay there, inputs and outputs go through pinned buffers beside the kernels.

    caller    checks inputs, fills pinned buffers, queues copies            [up]
    runner    default waits for up; kernels                                 [default]
              down waits for default; copies to pinned buffers; the wait    [down]
Kernels run on the default stream, on which TVM has its own copies, too (a size that a model reads back). The streams of
the copies do not wait for it unless told, so the inputs of a queued run travel while the one before computes. TVM's
copies know the default stream only: those here are NVIDIA's own call.

Activations and results come from the virtual machine's pool, pinned and input buffers from pools here: a run that is
like one before it allocates nothing. The GPU is the first that CUDA_VISIBLE_DEVICES leaves.

TVM captures CUDA graphs in the first run, in the mode in which no other thread of the process may allocate or use the
default stream: so first runs, and whatever is no plain run, have all of the process's GPU work wait (`_IN_USE`).
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import tvm_ffi

from ..artifact import Variant
from ..errors import EnvironmentProblem
from .devices import CPU, POOLED, Device, HostDevice, T, Tensors
from .host import load_cuda_runtime
from .shared_lock import SharedLock
from .tensors import aligned_empty, numpy_dtype, to_tensor, view

CUDA, PINNED = 2, 3  # DLPack's device types: memory of the GPU, of the host for its copies
_TO_GPU, _TO_HOST = 1, 2  # cudaMemcpyKind
_DEFAULT_STREAM = 0
_LEAST_BYTES = 4 << 10
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_COMPILER = "tvm_callback_cuda_compile"  # TVM's Python function that compiles CUDA source while a library is loaded
_IN_USE = SharedLock()  # of every Gpu: by what uses one, alone by what may capture


class _Lost(EnvironmentProblem):
    """A fault, which every later call answers with; a GPU without room is none."""


class Gpu:
    """The first GPU. `task` and `send` are for any thread, the rest for the session's.

    Raises
    ------
    EnvironmentProblem
        TVM's CUDA part, NVIDIA's runtime library or driver is missing, or there is no GPU
    """

    def __init__(self) -> None:
        self._cudart = load_cuda_runtime()
        self._cudart.cudaMemcpyAsync.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_void_p,
        ]
        self._cudart.cudaGetErrorString.restype = ctypes.c_char_p
        self._device = tvm_ffi.Device(CUDA, 0)
        new_stream = tvm_ffi.get_global_func("runtime.Device_StreamCreate")
        with _IN_USE.shared(), self._explained("streams"):
            self._up, self._down = new_stream(self._device), new_stream(self._device)
        for stream in (self._up, self._down):
            weakref.finalize(self, _free_stream, self._device, stream).atexit = False  # the process's end frees all
        self._wait_for = tvm_ffi.get_global_func("runtime.Device_StreamSync")
        self._order = tvm_ffi.get_global_func("runtime.Device_StreamSyncFromTo")
        self._pinned, self._memory = _Pool(tvm_ffi.Device(PINNED, 0)), _Pool(self._device)
        self._has_run = False

    def machine(self, library: tvm_ffi.Module) -> tvm_ffi.Module:
        machine: tvm_ffi.Module = library["vm_load_executable"]()
        machine["vm_initialization"](CUDA, 0, POOLED, CPU, 0, POOLED)
        return machine

    def keep(self, tensors: Tensors) -> tuple[tvm_ffi.Tensor, ...]:
        copy = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")
        kept = []
        with self._explained(f"weights or inputs of {_gib(sum(map(_size_bytes, tensors)))}", kept):
            for tensor in tensors:
                kept.append(_allocated(tuple(tensor.shape), str(tensor.dtype), self._device))
                if _size_bytes(tensor):
                    copy(tensor, kept[-1])
            self.synchronize()
        return tuple(kept)

    def task(self, main: Callable[..., object], inputs: Tensors, weights: Tensors) -> Callable[[], object]:
        given, buffers = self.send(inputs)

        def run() -> object:
            try:
                self._order(self._device, self._up, _DEFAULT_STREAM)
                fetched = self._fetched(main(*given, *weights))
                self.synchronize()  # whatever was launched may still read the buffers
                return fetched
            except BaseException:
                with suppress(RuntimeError):  # the first error is the one to tell
                    self.synchronize()
                raise
            finally:
                self._memory.give(buffers.values())
                self._pinned.give(buffers)

        def guarded() -> object:
            lock = _IN_USE.shared() if self._has_run else _IN_USE.alone()
            with lock, self._explained("a run's tensors", main, weights):
                result = run()
            self._has_run = True
            return result

        return guarded

    def alone(self, task: Callable[[], T]) -> Callable[[], T]:
        def guarded() -> T:
            with _IN_USE.alone(), self._explained("a run's tensors", task):
                return task()

        return guarded

    def send(self, tensors: Tensors) -> tuple[list[tvm_ffi.Tensor], dict[tvm_ffi.Tensor, tvm_ffi.Tensor]]:
        """`tensors` on the GPU, on their way there; and the buffers they use: pinned -> the GPU's."""
        given, buffers = [], {}
        with _IN_USE.shared(), self._explained(f"inputs of {_gib(sum(map(_size_bytes, tensors)))}"):
            try:
                for tensor in tensors:
                    size = _size_bytes(tensor)
                    pinned, memory = self._pinned.take(size), self._memory.take(size)
                    buffers[pinned] = memory
                    ctypes.memmove(pinned.data_ptr(), tensor.data_ptr(), size)
                    self._copy(memory, pinned, size, _TO_GPU, self._up)
                    given.append(view(memory, tuple(tensor.shape), str(tensor.dtype)))
            except BaseException:
                with suppress(RuntimeError):
                    self._wait_for(self._device, self._up)
                self._memory.give(buffers.values())
                self._pinned.give(buffers)
                raise
        return given, buffers

    def synchronize(self) -> None:
        self._wait_for(self._device, _DEFAULT_STREAM)

    def _fetched(self, result: object) -> list[object]:
        """The parts of a result, tensors of the GPU as tensors in host memory of their own."""
        parts = list(_parts(result))
        self._order(self._device, _DEFAULT_STREAM, self._down)
        pinned: dict[int, tvm_ffi.Tensor] = {}
        try:
            for place, part in enumerate(parts):
                if isinstance(part, tvm_ffi.Tensor) and part.device.dlpack_device_type() == CUDA:
                    pinned[place] = self._pinned.take(_size_bytes(part))
                    self._copy(pinned[place], part, _size_bytes(part), _TO_HOST, self._down)
            self._wait_for(self._device, self._down)
            for place, buffer in pinned.items():
                parts[place] = _copied(buffer, tuple(parts[place].shape), str(parts[place].dtype))
            return parts
        except BaseException:
            with suppress(RuntimeError):  # nothing must be on its way into the buffers; the first error is told
                self._wait_for(self._device, self._down)
            raise
        finally:
            self._pinned.give(pinned.values())

    def _copy(self, to: tvm_ffi.Tensor, source: tvm_ffi.Tensor, size: int, kind: int, stream: int) -> None:
        if not size:
            return
        code = self._cudart.cudaMemcpyAsync(to.data_ptr(), source.data_ptr(), size, kind, stream)
        if code:
            raise self._lost(code, f"copy {size} bytes")

    @contextmanager
    def _explained(self, needed: str, *held: object) -> Iterator[None]:
        """TVM's errors that are CUDA's, raised as `EnvironmentProblem`s; `needed` is what memory is asked for.

        After a fault freeing fails, too, and TVM ends the process where that does: what is `held` is then kept for
        good, and so is all of this.
        """
        try:
            yield
        except _Lost:
            self._keep_for_good(held)
            raise
        except RuntimeError as error:
            if "CUDA" not in str(error):  # a size that a kernel refuses, a mistake of ours
                raise
            code = self._cudart.cudaGetLastError()
            if code == _OUT_OF_MEMORY:
                free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
                self._cudart.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
                raise EnvironmentProblem(
                    f"{needed} were expected to fit in memory, but {_gib(free.value)} of the GPU's {_gib(total.value)} "
                    "are free: end what else uses it, compile with a narrower --precision or for smaller sizes, or "
                    "take another GPU"
                ) from error
            code = self._cudart.cudaStreamSynchronize(None) or code  # a fault is in every answer from now on
            if not code:
                raise
            self._keep_for_good(held)
            raise self._lost(code, "run kernels") from error

    def _keep_for_good(self, held: Iterable[object]) -> None:
        for kept in (self, *held):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def _lost(self, code: int, expected: str) -> _Lost:
        said = self._cudart.cudaGetErrorString(code).decode()
        return _Lost(
            f"the GPU was expected to {expected}, but says {said!r} (error {code}): what this process has on it may be "
            "lost: start another, and report it with the model if it comes again"
        )


class _Pool:
    """Byte tensors of one device by capacity, kept for the next who needs one; any thread may take and give."""

    def __init__(self, device: tvm_ffi.Device) -> None:
        self._device = device
        self._free: dict[int, list[tvm_ffi.Tensor]] = {}
        self._lock = threading.Lock()

    def take(self, size: int) -> tvm_ffi.Tensor:
        """One of at least `size` bytes."""
        capacity = max(_LEAST_BYTES, 1 << max(size - 1, 1).bit_length())
        with self._lock:
            free = self._free.setdefault(capacity, [])
            if free:
                return free.pop()
        return _allocated((capacity,), "uint8", self._device)

    def give(self, tensors: Iterable[tvm_ffi.Tensor]) -> None:
        """Back, when nothing reads or writes them any more."""
        with self._lock:
            for tensor in tensors:
                self._free[int(tensor.shape[0])].append(tensor)


def _free_stream(device: tvm_ffi.Device, stream: int) -> None:
    tvm_ffi.get_global_func("runtime.Device_StreamFree")(device, stream)


def _allocated(shape: tuple[int, ...], dtype: str, device: tvm_ffi.Device) -> tvm_ffi.Tensor:
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    tensor: tvm_ffi.Tensor = allocate(tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), device, None)
    return tensor


def _size_bytes(tensor: tvm_ffi.Tensor) -> int:
    return math.prod(tensor.shape) * numpy_dtype(str(tensor.dtype)).itemsize


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 27 else f"{size / 2**20:.1f} MiB"


def _copied(buffer: tvm_ffi.Tensor, shape: tuple[int, ...], dtype: str) -> tvm_ffi.Tensor:
    """A tensor in memory of its own with what `buffer`, in host memory, begins with."""
    array = aligned_empty(shape, numpy_dtype(dtype))
    if array.nbytes:
        ctypes.memmove(array.__array_interface__["data"][0], buffer.data_ptr(), array.nbytes)
    return to_tensor(array)


def _parts(result: object) -> Iterator[object]:
    """What a run returned, tuples opened: tensors, shapes, numbers."""
    if isinstance(result, (tvm_ffi.Tensor, tvm_ffi.Shape, bool, int, float)):
        yield result
    else:
        for part in result:  # type: ignore[attr-defined]
            yield from _parts(part)


def device_of(variant: Variant) -> Device:
    """Where the kernels of `variant` run; `EnvironmentProblem` for one that nothing here can make code of."""
    if variant.device_code is None:
        return HostDevice()
    if variant.device_code == "source" and tvm_ffi.get_global_func(_COMPILER, allow_missing=True) is None:
        raise EnvironmentProblem(
            f"machine code for the GPU was expected, but this artifact holds CUDA source for {variant.isa}: compile "
            "the model where nvcc is installed, or `import tvm` first and have nvcc here"
        )
    return Gpu()
