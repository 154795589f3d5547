"""What a session gets of this host: how many threads, which library, TVM's runtime."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import tvm_ffi

from ..artifact import Variant
from ..config import environment
from ..errors import EnvironmentProblem, UsageError
from ..targets import read_host

_PROBE = "runtime.config_threadpool"  # a function that exists exactly when TVM's runtime is loaded


def resolve_threads(threads: int | None, cpus: Sequence[int]) -> int:
    """Threads of a session: the argument, else the environment, else every usable CPU.

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
            return len(cpus)
    if not str(count).isdecimal() or not 1 <= int(count) <= len(cpus):
        raise UsageError(
            f"{origin}: expected an integer from 1 to {len(cpus)}, the CPUs this process may use, found {count!r}; "
            f"leave it out to use all {len(cpus)}"
        )
    return int(count)


def choose_variant(variants: Sequence[Variant], *, machine: str = "", flags: frozenset[str] | None = None) -> Variant:
    """The variant with the most required features among those this host can run.

    `machine` and `flags` default to this host's.

    Raises
    ------
    EnvironmentProblem
        no variant runs here; the message names what each one lacks
    """
    if not machine or flags is None:
        host = read_host()
        machine, flags = machine or host.machine, host.flags if flags is None else flags
    reasons: list[str] = []
    fitting: list[Variant] = []
    for variant in variants:
        missing = sorted(set(variant.requires) - flags)
        if variant.machine and machine not in variant.machine:
            reasons.append(f"{variant.isa} is for {' or '.join(variant.machine)}")
        elif missing:
            reasons.append(f"{variant.isa} needs {', '.join(missing)}")
        else:
            fitting.append(variant)
    if not fitting:
        raise EnvironmentProblem(
            f"expected a library this host ({machine}) can run, found none: {'; '.join(reasons)}; "
            "compile the model for a smaller instruction set with --target"
        )
    return max(fitting, key=lambda v: len(v.requires))


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
    spec = importlib.util.find_spec("tvm")
    folders = [Path(p) / "lib" for p in (spec.submodule_search_locations if spec else None) or ()]
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
