"""NVIDIA's tools on this machine: where they are, and what this nvcc can build."""

from __future__ import annotations

import re
import shutil
import site
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .arch import capability

# Beside the path: where the toolkit's own installers put it, and where pip puts its wheels.
_TOOLKIT = Path("/usr/local/cuda/bin")
_WHEELS = "nvidia/cu*/bin"


@dataclass(frozen=True)
class Nvcc:
    """A device compiler and what it says about itself."""

    path: str
    version: str  # "13.0"
    archs: frozenset[int]  # compute capabilities it compiles for: 80, 86, ...

    def compiles_for(self, arch: str) -> bool:
        """Whether it can make machine code for `arch`, e.g. "sm_90" or "sm_90a"."""
        return capability(arch) in self.archs


def find_tool(name: str) -> str | None:
    """The path of nvcc, ptxas, cuobjdump, ...: on the path, in the usual toolkit, among Python's packages; or None."""
    found = shutil.which(name)
    if found:
        return found
    folders = [_TOOLKIT, *(p for root in site.getsitepackages() for p in sorted(Path(root).glob(_WHEELS)))]
    return shutil.which(name, path=":".join(map(str, folders)))


def find_nvcc() -> Nvcc | None:
    """This machine's device compiler; None without one, or when it does not answer."""
    path = find_tool("nvcc")
    return _asked(path) if path else None


def no_compiler(arch: str) -> str:
    """Why this machine makes no machine code for `arch`; empty when it does."""
    nvcc = find_nvcc()
    if nvcc is None:
        return "nvcc is not on this machine: install NVIDIA's CUDA toolkit 13"
    if not nvcc.compiles_for(arch):
        return f"nvcc {nvcc.version} does not compile for {arch}: install a CUDA toolkit that does"
    return ""


@cache
def _asked(path: str) -> Nvcc | None:
    try:
        version = _output(path, "--version")
        archs = _output(path, "--list-gpu-code")
    except (OSError, subprocess.SubprocessError):
        return None
    release = re.search(r"release (\d+\.\d+)", version)
    return Nvcc(path, release[1] if release else "unknown", frozenset(map(int, re.findall(r"sm_(\d+)", archs))))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
