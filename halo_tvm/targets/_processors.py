"""Which processors of this host a process may use, and how many of them are worth a thread."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def usable_cpus() -> tuple[int, ...]:
    """Numbers of the CPUs the calling thread may run on, ascending; all of them where the system has no masks."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def default_threads(cpus: Sequence[int], root: Path = _ROOT) -> int:
    """Threads that are worth starting on `cpus`: one for each core, and no more than the quota of a container pays for.

    Two CPUs of one core share its multipliers and its caches, which one thread of ours fills. When the threads of a
    container have used up its quota together, Linux stops them all until the next period begins (0.1 s): threads that
    wait actively would spend it. A part of a CPU is not counted, the first one always is. `root` is where /proc and
    /sys are.
    """
    granted = min(_quotas(root), default=float(len(cpus)))
    return max(1, min(_cores(cpus, root), int(granted)))


def _cores(cpus: Sequence[int], root: Path) -> int:
    """Physical cores of `cpus`; a CPU of which the system tells nothing is one."""
    topology = root / "sys/devices/system/cpu"
    return len({_read(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def _quotas(root: Path) -> Iterator[float]:
    """CPUs' worth of time that each control group around this process may use, where it is limited."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / controllers
        # A container sees its own group at the root, whatever the path says.
        for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
            group = mounted / folder.relative_to("/") if folder.is_absolute() else mounted
            if controllers:
                quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
            else:
                quota, _, period = _read(group / "cpu.max").partition(" ")
            if quota.isdecimal() and period.isdecimal() and int(period):
                yield int(quota) / int(period)


def _read(file: Path) -> str:
    """The text of a small file of the system; empty where there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
