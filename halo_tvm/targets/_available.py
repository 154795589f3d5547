"""Whether a target can be built, and whether it can be run, on this machine: two questions, each with its reason."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from ..cuda.toolkit import find_nvcc, no_compiler
from ._host import UNREAD, Host, read_gpus, read_host
from ._target import Target
from .gpu_levels import portable_shared_bytes, runs_code_of, shared_bytes


@dataclass(frozen=True)
class Answer:
    """`ok`, and a sentence: why not, or what to know."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


def can_build_here(target: Target) -> Answer:
    """Whether this machine can compile and link for `target`."""
    spec, linker = target.spec, target.linker
    if linker is not None and shutil.which(linker) is None:
        package = (
            f": install the package {spec.linker_package} (apt-get install {spec.linker_package})"
            if spec.linker_package
            else ""
        )
        return Answer(False, f"linking for {spec.name} needs the compiler {linker}, which is not on the path{package}")
    if linker is None and shutil.which("g++") is None and shutil.which("c++") is None:
        return Answer(
            False,
            "linking needs a C++ compiler, and neither g++ nor c++ is on the path: "
            "install the package g++ (apt-get install g++)",
        )
    return _can_build_for_gpu(target) if spec.gpu else Answer(True)


def _can_build_for_gpu(target: Target) -> Answer:
    lacking = no_compiler(target.arch)
    if lacking:
        return Answer(True, f"libraries hold CUDA source, which is compiled when they are loaded: {lacking}")
    return Answer(True, f"libraries hold machine code, by nvcc {find_nvcc().version}")


def can_run_here(target: Target, host: Host | None = None) -> Answer:
    """Whether this machine can run what is built for `target`."""
    host = host or read_host()
    spec = target.spec
    if spec.gpu:
        return _can_run_on_gpu(target)
    if spec.runs_on and host.machine not in spec.runs_on:
        return Answer(
            False,
            f"{spec.name} runs on {' or '.join(sorted(spec.runs_on))}, and this host is {host.machine}: "
            "copy the artifact to such a machine",
        )
    if target.isa.requires and not host.flags:
        return Answer(False, UNREAD)
    lacking = sorted(target.isa.requires - host.flags)
    if lacking:
        return Answer(
            False,
            f"{target.name} needs CPU features that this host lacks ({', '.join(lacking)}): choose a smaller level",
        )
    return Answer(True)


def _can_run_on_gpu(target: Target) -> Answer:
    gpus = read_gpus()
    if not gpus:
        return Answer(
            False,
            "no NVIDIA GPU: nvidia-smi is missing or lists none; install the driver, "
            "or copy the artifact to a machine with a GPU",
        )
    if not any(runs_code_of(gpu.arch, target.arch) for gpu in gpus):
        needed = portable_shared_bytes(target.arch)
        found = ", ".join(f"{gpu.name} ({gpu.arch}, {shared_bytes(gpu.arch) >> 10} KiB)" for gpu in gpus)
        return Answer(
            False,
            f"{target.name} needs a GPU of {target.arch} or newer, and {needed >> 10} KiB of shared memory in a block; "
            f"this machine has {found}: choose a smaller level",
        )
    return Answer(True)
