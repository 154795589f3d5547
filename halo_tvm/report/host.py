"""The description of this machine that stands beside every number: its class, never its name."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from ..targets import default_threads, read_host, usable_cpus
from .parts import Host

# Extensions that change which kernels run; others are left out of reports.
NOTABLE_ISA = (
    "avx2",
    "fma",
    "avx512f",
    "avx512vl",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "asimdhp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
)
PACKAGES = ("halo-tvm", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime", "torch", "openvino", "jax")
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")


def describe_host() -> Host:
    """CPU class, vector extensions, usable cores, memory and package versions of this process's machine."""
    cpu = _first_block(_CPUINFO)
    flags = read_host().flags
    parts = [platform.machine(), cpu.get("vendor_id") or cpu.get("CPU implementer", "")]
    family, model = cpu.get("cpu family"), cpu.get("model") or cpu.get("CPU part")
    parts += [f"family {family}"] if family else []
    parts += [f"model {model}"] if model else []
    return Host(
        cpu=" ".join(part for part in parts if part),
        isa=tuple(name for name in NOTABLE_ISA if name in flags),
        cores=default_threads(usable_cpus()),
        memory_gib=_memory_gib(),
        python=platform.python_version(),
        packages=package_versions(),
    )


def package_versions() -> dict[str, str]:
    """Versions of the packages that are installed, of those results depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _first_block(path: Path) -> dict[str, str]:
    """`key: value` lines up to the first empty line; empty where the system has no such file."""
    block: dict[str, str] = {}
    if not path.exists():
        return block
    with path.open() as lines:
        for line in lines:
            if not line.strip():
                break
            key, _, value = line.partition(":")
            block[key.strip()] = value.strip()
    return block


def _memory_gib() -> float:
    total = _first_block(_MEMINFO).get("MemTotal", "0 kB").split()[0]
    return round(int(total) / (1 << 20), 1)
