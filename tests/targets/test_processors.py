"""How many threads a host is worth: cores instead of CPUs, and what a container pays for."""

from __future__ import annotations

from pathlib import Path

import pytest

from halo_tvm.targets import default_threads, usable_cpus


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="utf-8")
    return root


def siblings(*cores: str) -> dict[str, str]:
    """The system's files for CPUs that share cores, e.g. "0,4" or "0-1"."""
    numbers = [(c, range(int(c[0]), int(c[-1]) + 1) if "-" in c else map(int, c.split(","))) for c in cores]
    return {f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": c for c, them in numbers for n in them}


@pytest.mark.parametrize(
    ("cpus", "cores", "expected"),
    [
        (range(8), ("0,4", "1,5", "2,6", "3,7"), 4),
        (range(8), ("0-1", "2-3", "4-5", "6-7"), 4),
        ((0, 1, 4), ("0,4", "1,5"), 2),  # a mask that leaves out half a core
        (range(6), ("0-1", "2-3"), 4),  # the others are of cores that have one CPU, or nothing is known of them
        ((7,), (), 1),
    ],
)
def test_a_core_is_worth_one_thread(tmp_path: Path, cpus: range, cores: tuple[str, ...], expected: int) -> None:
    assert default_threads(cpus, made(tmp_path, siblings(*cores))) == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "350000 100000"}, 3),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "nonsense"}, 8),
        ("0::/pod/task", {"pod/cpu.max": "300000 100000", "pod/task/cpu.max": "max 100000"}, 3),
        ("0::/pod/task", {"pod/cpu.max": "300000 100000", "pod/task/cpu.max": "200000 100000"}, 2),
        ("0::/of/the/host", {"cpu.max": "400000 100000"}, 4),  # a container sees its own group at the root
        (
            "4:cpu,cpuacct:/docker",
            {"cpu,cpuacct/cpu.cfs_quota_us": "250000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("4:cpu:/a\n0::/", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
        ("5:cpuset:/a", {"cpuset/a/cpu.cfs_quota_us": "100000", "cpuset/a/cpu.cfs_period_us": "100000"}, 8),
        ("4:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "0"}, 8),
    ],
)
def test_a_container_gets_the_threads_it_pays_for(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    root = made(tmp_path, {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": t for name, t in files.items()}})
    assert default_threads(range(8), root) == expected


def test_this_host_is_worth_a_thread() -> None:
    assert 1 <= default_threads(usable_cpus()) <= len(usable_cpus())
