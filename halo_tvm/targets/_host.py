"""What the host CPU and GPU are, read from the system without importing TVM."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ._processors import default_threads, usable_cpus

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_TILES = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
_REQUEST_TILES = (158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
# Bits of AT_HWCAP and AT_HWCAP2 on ARM under the names that /proc/cpuinfo has for them.
_HWCAP = {16: {1: "asimd", 9: "fphp", 10: "asimdhp", 20: "asimddp", 22: "sve"}, 26: {1: "sve2", 13: "i8mm", 14: "bf16"}}
UNREAD = "this host does not say what its CPU has, as Linux does in /proc/cpuinfo: use --target c"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Host:
    """One machine's CPU. Cache sizes are per instance, 0 where the system does not say."""

    machine: str  # platform.machine(): "x86_64", "aarch64", ...
    model: str
    flags: frozenset[str]  # names as /proc/cpuinfo prints them, of what this process may use
    cores: int  # cores that are worth a thread of this process
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU; `arch` is its compute capability as nvcc spells it, e.g. "sm_90". Zero stands for not known."""

    name: str
    arch: str
    multiprocessors: int = 0
    l2_bytes: int = 0


def read_host(cpuinfo: str | None = None) -> Host:
    """The host; `cpuinfo` replaces the text of /proc/cpuinfo."""
    own = cpuinfo is None
    if cpuinfo is None:
        source = Path("/proc/cpuinfo")
        cpuinfo = source.read_text(encoding="utf-8", errors="replace") if source.exists() else ""
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", cpuinfo, flags=re.MULTILINE))
    flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    if own and platform.machine() == "aarch64" and sys.platform == "linux":
        flags = _capabilities()
    elif own and not _may_use_tiles():
        flags -= _TILES
    caches = _read_caches(_CACHES)
    return Host(
        machine=platform.machine(),
        model=fields.get("model name") or platform.processor() or "unknown",
        flags=flags,
        cores=default_threads(usable_cpus()),
        l1_bytes=caches.get(1, 0),
        l2_bytes=caches.get(2, 0),
        l3_bytes=caches.get(3, 0),
    )


def _capabilities() -> frozenset[str]:
    """What the kernel lets this process use of an ARM CPU; under an emulator /proc/cpuinfo tells of another CPU."""
    ask = ctypes.CDLL(None).getauxval
    ask.argtypes, ask.restype = (ctypes.c_ulong,), ctypes.c_ulong
    return frozenset(name for key, names in _HWCAP.items() for bit, name in names.items() if ask(key) >> bit & 1)


@functools.cache
def _may_use_tiles() -> bool:
    """Whether the system gives this process AMX's registers, which it has to ask for."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return False
    refused: int = ctypes.CDLL(None).syscall(*_REQUEST_TILES)
    return not refused


def _read_caches(root: Path) -> dict[int, int]:
    """Bytes of each level's data (or unified) cache, as the kernel lists them under `root`."""
    sizes: dict[int, int] = {}
    for index in sorted(root.glob("index*")):
        if (index / "type").read_text().strip() == "Instruction":
            continue
        size = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
        if size:
            sizes[int((index / "level").read_text())] = int(size[1]) * _UNITS[size[2]]
    return sizes


def read_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs, as the driver's own tool lists them; empty without driver or GPU.

    The tool does not know CUDA_VISIBLE_DEVICES: where that hides all, there are none; where it begins with a UUID, that
    one is listed; what an index means depends on an order that the tool does not tell, so all are.
    """
    tool = shutil.which("nvidia-smi")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # noqa: TID251 - nvidia-smi does not follow it
    first = None if visible is None else visible.split(",")[0].strip()
    if tool is None or first in ("", "-1"):
        return ()
    command = [tool, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    if first is not None and first.startswith("GPU-"):
        command += ["-i", first]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = (line.rsplit(",", 1) for line in answer.stdout.splitlines() if "," in line)
    return tuple(Gpu(name.strip(), "sm_" + capability.strip().replace(".", "")) for name, capability in rows)
