"""What a session gets of this host: how many threads, which library, TVM's runtime."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import tvm_ffi

from ..artifact import Variant
from ..config import environment
from ..errors import EnvironmentProblem, UsageError
from ..targets import Gpu, capability, default_threads, read_host, runs_code_of

_PROBE = "runtime.config_threadpool"  # a function that exists exactly when TVM's runtime is loaded
_CUDA_PROBE = "device_api.cuda"  # and its CUDA part
_CUDA_LIBRARY, _CUDART = "libtvm_runtime_cuda.so", "libcudart.so.13"
_TOOLKIT = (f"/usr/local/cuda/lib64/{_CUDART}",)
_CUDA, _COMPUTE_VERSION = 2, 4  # of runtime.GetDeviceAttr
_MULTIPROCESSORS, _L2_BYTES = 16, 38  # of cudaDeviceGetAttribute
_OLD_DRIVER, _NO_DEVICE = 35, 100  # cudaErrorInsufficientDriver, cudaErrorNoDevice
GPU_FLAG = "nvidia_gpu"  # what libraries for a GPU require; no CPU has it


def resolve_threads(threads: int | None, cpus: Sequence[int]) -> int:
    """Threads of a session: the argument, else the environment, else `default_threads` of the usable CPUs.

    Raises
    ------
    UsageError
        not an integer from 1 to the number of usable CPUs (kernels wait actively for each other,
        so more threads than CPUs would be many times slower)
    """
    origin, count = "threads", threads
    if threads is None:
        origin, count = "HALO_TVM_NUM_THREADS", environment().threads
        if count is None:
            return default_threads(cpus)
    if not str(count).isdecimal() or not 1 <= int(count) <= len(cpus):
        raise UsageError(
            f"{origin}: expected an integer from 1 to {len(cpus)}, the CPUs this process may use, found {count!r}; "
            f"leave it out for {default_threads(cpus)}"
        )
    return int(count)


def choose_variant(
    variants: Sequence[Variant], *, machine: str = "", flags: frozenset[str] | None = None, gpu: str | None = None
) -> Variant:
    """The variant with the most required features among those this host can run; for a GPU, of the highest level.

    One for a GPU goes before others. `machine` and `flags` default to this host's, and `gpu` to the compute capability
    of its first GPU ("sm_90"; empty: none), which is asked for only when a variant needs one.

    Raises
    ------
    EnvironmentProblem
        no variant runs here; the message names what each one lacks
    """
    if not machine or flags is None:
        host = read_host()
        machine, flags = machine or host.machine, host.flags if flags is None else flags
    without_gpu, remedy = "none is here", "compile the model for this machine: --target cpu"
    reasons: list[str] = []
    fitting: list[Variant] = []
    for variant in variants:
        if variant.device_code is not None:
            if gpu is None:
                try:
                    gpu = gpu_arch()
                except EnvironmentProblem as error:
                    gpu, without_gpu = "", str(error)
            if not gpu or not runs_code_of(gpu, variant.isa):
                reasons.append(
                    f"{variant.isa} needs such a GPU, or a later one with as much shared memory in a block, and "
                    f"{f'{gpu} is here' if gpu else without_gpu}"
                )
                continue
        missing = sorted(set(variant.requires) - flags - ({GPU_FLAG} if variant.device_code is not None else set()))
        if variant.machine and machine not in variant.machine:
            reasons.append(f"{variant.isa} is for {' or '.join(variant.machine)}")
        elif missing:
            reasons.append(f"{variant.isa} needs {', '.join(missing)}")
            remedy = "compile the model for a smaller instruction set with --target"
        else:
            fitting.append(variant)
    if not fitting:
        raise EnvironmentProblem(
            f"expected a library this host ({machine}) can run, found none: {'; '.join(reasons)}; {remedy}"
        )
    return max(fitting, key=lambda v: (capability(v.isa) if v.device_code is not None else 0, len(v.requires)))


@functools.cache
def first_gpu() -> Gpu:
    """The first GPU that CUDA sees, which sessions use, but for its name; raises as `load_cuda_runtime`."""
    cudart = load_cuda_runtime()

    def attribute(number: int) -> int:
        value = ctypes.c_int(0)
        cudart.cudaDeviceGetAttribute(ctypes.byref(value), number, 0)
        return value.value

    return Gpu("", gpu_arch(), attribute(_MULTIPROCESSORS), attribute(_L2_BYTES))


def gpu_arch() -> str:
    """The compute capability of the first GPU that TVM's runtime finds, "sm_90"; raises as `load_cuda_runtime`."""
    load_cuda_runtime()
    version = tvm_ffi.get_global_func("runtime.GetDeviceAttr")(_CUDA, 0, _COMPUTE_VERSION)
    return "sm_" + str(version).replace(".", "")


@functools.cache
def load_cuda_runtime() -> ctypes.CDLL:
    """NVIDIA's runtime library, with TVM's CUDA part loaded beside it, unless they are there; once per process.

    Raises
    ------
    EnvironmentProblem
        one of them or the driver is missing, or there is no GPU
    """
    load_tvm_runtime()
    try:
        cudart = _nvidia_runtime()
    except OSError as error:
        raise EnvironmentProblem(
            f"CUDA 13's runtime library was expected, but {error}: pip install nvidia-cuda-runtime"
        ) from None
    _check_gpus(cudart)
    try:
        if tvm_ffi.get_global_func(_CUDA_PROBE, allow_missing=True) is None:
            for folder in _tvm_folders():
                if (folder / _CUDA_LIBRARY).is_file():
                    ctypes.CDLL(str(folder / _CUDA_LIBRARY), ctypes.RTLD_GLOBAL)
                    break
            else:
                raise OSError(f"no {_CUDA_LIBRARY} beside TVM's runtime")
    except OSError as error:
        raise EnvironmentProblem(
            f"TVM's runtime for CUDA was expected to load, but {error}: install the pinned apache-tvm (setup.py), "
            "and NVIDIA's driver where libcuda is missing"
        ) from None
    return cudart


def _check_gpus(cudart: ctypes.CDLL) -> None:
    """`EnvironmentProblem`, with what to do about it, unless NVIDIA's runtime lists a GPU."""
    count, driver = ctypes.c_int(0), ctypes.c_int(0)
    code = cudart.cudaGetDeviceCount(ctypes.byref(count))
    if not code and count.value:
        return
    cudart.cudaDriverGetVersion(ctypes.byref(driver))
    if code in (0, _NO_DEVICE):
        found = "the driver lists none: run where one is, and look at CUDA_VISIBLE_DEVICES"
    elif code == _OLD_DRIVER and not driver.value:
        found = "no NVIDIA driver is loaded: install one, or run where a GPU is"
    elif code == _OLD_DRIVER:
        version = f"{driver.value // 1000}.{driver.value % 1000 // 10}"
        found = f"its driver is one for CUDA {version}: update it to one for CUDA 13 (580 or later)"
    else:
        cudart.cudaGetErrorString.restype = ctypes.c_char_p
        found = f"the driver says {cudart.cudaGetErrorString(code).decode()!r} (error {code}): look at nvidia-smi"
    raise EnvironmentProblem(f"a GPU was expected, but {found}")


def _nvidia_runtime() -> ctypes.CDLL:
    """libcudart, from the loader's places, Python's packages, or the usual toolkit; TVM's part then finds it loaded."""
    spec = importlib.util.find_spec("nvidia")
    wheels = (Path(p) for p in (spec.submodule_search_locations if spec else None) or ())
    places = [_CUDART, *(str(f) for p in wheels for f in sorted(p.glob(f"*/lib/{_CUDART}"))), *_TOOLKIT]
    for place in places:
        try:
            return ctypes.CDLL(place, ctypes.RTLD_GLOBAL)
        except OSError as error:
            last = error
    raise last


def load_tvm_runtime() -> None:
    """Load libtvm_runtime into the process unless it is there; TVM's Python package is not imported.

    With `tvm` imported before or after, the loader gives back the same library, so nothing is registered twice.

    Raises
    ------
    EnvironmentProblem
        no TVM is installed, or it has no runtime library for this system
    """
    if tvm_ffi.get_global_func(_PROBE, allow_missing=True) is not None:
        return
    folders = _tvm_folders()
    suffix = {"darwin": "libtvm_runtime.dylib", "win32": "tvm_runtime.dll"}.get(sys.platform, "libtvm_runtime.so")
    for folder in folders:
        if (folder / suffix).is_file():
            # global: libraries that compile() wrote take their runtime symbols from the process
            try:
                ctypes.CDLL(str(folder / suffix), ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise EnvironmentProblem(
                    f"expected TVM's runtime library to load, found {error}; "
                    "install the pair apache-tvm and apache-tvm-ffi again"
                ) from error
            return
    where = f"in {', '.join(map(str, folders))}" if folders else "because the package tvm is not installed"
    raise EnvironmentProblem(
        f"expected TVM's runtime library {suffix}, found none {where}; run `pip install apache-tvm`"
    )


def _tvm_folders() -> list[Path]:
    """Where TVM's libraries may lie; its package is looked for, not imported."""
    spec = importlib.util.find_spec("tvm")
    return [Path(p) / "lib" for p in (spec.submodule_search_locations if spec else None) or ()]
