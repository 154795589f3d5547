"""From the CUDA source in an executable to machine code in a library, without a driver or a GPU."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._compat import packed_modules
from ..errors import UnsupportedModel
from ..phase_reports import DeviceCode, DeviceKernel
from ._ptxas import read_log
from .embedding import replace_source, write_source
from .toolkit import Nvcc, find_nvcc, no_compiler

if TYPE_CHECKING:
    from tvm import relax, runtime

TIMEOUT_S = 1800
FATBIN, SOURCE = "fatbin", "source"


@dataclass(frozen=True)
class MachineCode:
    """A fatbin and what each of its kernels needs."""

    fatbin: bytes
    kernels: tuple[DeviceKernel, ...]


def compile_source(source: str, arch: str, nvcc: Nvcc, dynamic_shared: dict[str, int] | None = None) -> MachineCode:
    """Machine code of `source` for `arch`, and PTX beside it, from which newer GPUs make their own.

    Arithmetic is exact: no fast-math, which would make exp, division and subnormals inexact everywhere. A
    kernel that wants a fast instruction names it. `UnsupportedModel` when nvcc refuses the source.
    """
    number = arch.removeprefix("sm_")
    with tempfile.TemporaryDirectory(prefix="halo-tvm-cuda-") as scratch:
        written, made = Path(scratch) / "kernels.cu", Path(scratch) / "kernels.fatbin"
        written.write_text(source, encoding="utf-8")
        command = [
            nvcc.path,
            "--fatbin",
            "-O3",
            "-gencode",
            f"arch=compute_{number},code=[sm_{number},compute_{number}]",
            "--expt-relaxed-constexpr",
            # TVM's source uses the operators of 16-bit types that its prelude leaves to the toolkit.
            "-U__CUDA_NO_HALF_OPERATORS__",
            "-U__CUDA_NO_HALF_CONVERSIONS__",
            "-U__CUDA_NO_BFLOAT16_OPERATORS__",
            "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
            "-U__CUDA_NO_BFLOAT162_OPERATORS__",
            "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
            "--ptxas-options=--verbose",
            "-o",
            str(made),
            str(written),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise UnsupportedModel(
                f"expected kernels that nvcc compiles within {TIMEOUT_S} s, but it is still at work: "
                "compile a smaller model, or name another rule for the largest function in halo.toml"
            ) from None
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            first = (errors or done.stderr.splitlines() or ["no message"])[0].replace(str(written), "the source")
            raise UnsupportedModel(
                f"expected kernels that nvcc {nvcc.version} compiles for {arch}, but it says: {first}: "
                "choose another target, or another rule for that function in halo.toml"
            )
        return MachineCode(made.read_bytes(), read_log(done.stderr, source, dynamic_shared or {}))


def export_with_machine_code(
    executable: relax.VMExecutable,
    path: Path,
    arch: str,
    options: dict[str, object],
    dynamic_shared: dict[str, int] | None = None,
) -> DeviceCode:
    """Link `executable` into the library `path` with machine code for `arch`, or with source where none can be made."""
    reason = no_compiler(arch)
    nvcc = find_nvcc()
    if reason or nvcc is None:
        executable.export_library(str(path), **options)
        return DeviceCode(SOURCE, arch, "", reason)
    sources = sorted({module.inspect_source("cuda") for module in _modules(executable.mod) if module.kind == "cuda"})
    made = {source: compile_source(source, arch, nvcc, dynamic_shared) for source in sources}
    code = {source: compiled.fatbin for source, compiled in made.items()}

    def pack(module: runtime.Module, _system_lib: bool, _prefix: str, directory: str) -> str:
        return str(write_source(replace_source(packed_modules(module), code), Path(directory)))

    # The executable's own method does not hand the packer on.
    executable.mod.export_library(str(path), fpack_imports=pack, **options)
    kernels = sorted((kernel for compiled in made.values() for kernel in compiled.kernels), key=lambda k: k.name)
    return DeviceCode(FATBIN, arch, f"nvcc {nvcc.version}", "", tuple(kernels))


def _modules(root: runtime.Module) -> list[runtime.Module]:
    found, pending = [], [root]
    while pending:
        module = pending.pop()
        found.append(module)
        pending += list(module.imports)
    return found
