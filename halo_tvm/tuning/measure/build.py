"""Building one PrimFunc as the build phase would: into this process, or into a small shared library."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import tvm
from tvm import tirx

from ..._compat import device_source
from ...code_generation import compiled
from ...cuda.launches import DynamicShared
from ...cuda.machine_code import export_with_machine_code
from ...phase_reports import DeviceCode
from ...targets import Target
from . import protocol as p

NAME = "main"


def build(func: tirx.PrimFunc, target: Target) -> tvm.runtime.Module:
    """`func` compiled for `target`; the module's function is called `NAME`. TVM's errors pass through."""
    return _compiled(func, target).jit()


def write_library(func: tirx.PrimFunc, target: Target, path: Path) -> DeviceCode | None:
    """`func` compiled for `target` into the shared library `path`, which `tvm.runtime.load_module` reads.

    Returns what it holds for a GPU, None for a CPU. TVM's errors pass through; `p.Failed` when it cannot be linked.
    """
    if target.spec.gpu:
        return _write_for_gpu(func, target, path)
    executable = _compiled(func, target)
    if executable.mod.kind != "llvm" or executable.mod.imports or target.linker or _linker() is None:
        executable.export_library(str(path), **target.export_options())
        return None
    # The linker itself: a compiler driver takes twice as long. What the code calls of the C library is
    # found in the process that loads it.
    code = path.with_suffix(".o")
    try:
        executable.mod.write_to_file(str(code))
        done = subprocess.run(
            [_linker(), "-shared", "-o", str(path), str(code)], capture_output=True, text=True, check=False
        )
    finally:
        code.unlink(missing_ok=True)
    if done.returncode:
        kind = p.FILE_TOO_LARGE if done.returncode == -signal.SIGXFSZ else p.BUILD_ERROR
        raise p.Failed(kind, f"the linker ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return None


def _write_for_gpu(func: tirx.PrimFunc, target: Target, path: Path) -> DeviceCode:
    shared = DynamicShared()
    with device_source():
        executable = _compiled(func, target, (shared,))
    return export_with_machine_code(executable, path, target.arch, target.export_options(), shared.bytes_of)


def _compiled(func: tirx.PrimFunc, target: Target, instruments: Sequence[object] = ()) -> tvm.runtime.Executable:
    return compiled(tvm.IRModule({NAME: func.with_attr("global_symbol", NAME)}), target, instruments)


@cache
def _linker() -> str | None:
    return shutil.which("ld")
