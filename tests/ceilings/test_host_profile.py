"""host.json: one rule for all who read it; the measuring process; the least time under ceilings."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from halo_tvm.ceilings import (
    HostProfile,
    Peaks,
    kept_peaks,
    least_us,
    measure,
    read_profile,
)
from halo_tvm.ceilings.kernels import ACCUMULATORS
from halo_tvm.errors import EnvironmentProblem
from halo_tvm.targets import Host, resolve

HOST = Host("x86_64", "a CPU", frozenset(), 2, 1 << 15, 1 << 20, 1 << 25)
RATES = {"fma_gflops": 100.0, "int8_gops": 400.0, "l2_gbps": 80.0, "l3_gbps": 40.0, "dram_gbps": 20.0}
PROFILE = HostProfile("a CPU", "x86_64", "avx2", "2026-01-01T00:00:00Z", {1: RATES, 2: {**RATES, "l2_gbps": 160.0}})
PEAKS = Peaks(1, 100.0, 80.0, 40.0, 20.0, 400.0, 1 << 20, 1 << 25, "2026-01-01T00:00:00Z")


def test_a_profile_is_read_as_it_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "home" / "host.json"
    missing, why = kept_peaks(path, HOST, 2)
    assert missing is None and "was not measured: run `halo-tvm doctor --measure`" in why
    PROFILE.save(path)
    assert [p.name for p in path.parent.iterdir()] == ["host.json"]
    assert read_profile(path) == (PROFILE, "")
    assert kept_peaks(path, HOST, 1) == (PEAKS, "")
    assert kept_peaks(path, HOST, 2)[0] == Peaks(
        2, 100.0, 160.0, 40.0, 20.0, 400.0, 2 << 20, 1 << 25, "2026-01-01T00:00:00Z", None
    )
    dataclasses.replace(PROFILE, by_threads={1: {**RATES, "bf16_gflops": 190.0}}).save(path)
    assert kept_peaks(path, HOST, 1)[0] == dataclasses.replace(PEAKS, bf16_gflops=190.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cpu": "another"}, "of another machine"),
        ({"machine": "aarch64"}, "of another machine"),
        ({"by_threads": {"2": RATES}}, "has no rates for 1 thread:"),
        ({"by_threads": {}}, "is no host profile"),
        ({"by_threads": {"0": RATES}}, "is no host profile"),
        ({"by_threads": {"1": {**RATES, "l3_gbps": 0.0}}}, "rates must be positive"),
        ({"by_threads": {"1": {**RATES, "int8_gops": "fast"}}}, "is no host profile"),
        ({"by_threads": {"1": {**RATES, "bf16_gflops": -1.0}}}, "rates must be positive"),
        ({"by_threads": {"1": {**RATES, "l3_gbps": 10**400}}}, "is no host profile"),
        ({"by_threads": {"1": {**RATES, "l3_gbps": float("nan")}}}, "is no host profile"),
        ({"by_threads": {"1": {"l3_gbps": 1.0}}}, "is no host profile"),
        ({"by_threads": {"1": []}}, "is no host profile"),
        ({"by_threads": [1]}, "is no host profile"),
        ({"measured_at": None}, "is no host profile"),
    ],
)
def test_a_profile_that_does_not_fit_is_ignored_with_a_sentence(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({**PROFILE.as_json(), **change}))
    found, said = kept_peaks(path, HOST, 1)
    assert found is None and why in said and "halo-tvm doctor --measure" in said and str(tmp_path) not in said


@pytest.mark.parametrize("text", ["{", "[]", "3", "[" * 100_000, '{"by_threads": {"' + "9" * 5000 + '": {}}}'])
def test_damaged_files_are_no_profiles(tmp_path: Path, text: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)
    assert "is no host profile" in read_profile(path)[1]
    path.write_bytes(b"\xff")
    assert "is no host profile" in read_profile(path)[1]


def test_a_measuring_process_that_fails_leaves_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_CHILD", "import sys; sys.exit('first\\nno compiler here')")
    with pytest.raises(EnvironmentProblem, match=r"ended with no compiler here: run `halo-tvm doctor`"):
        measure.measure_apart(1)
    monkeypatch.setattr(measure, "_CHILD", "print('{}')")
    with pytest.raises(EnvironmentProblem, match="ended with expected the fields cpu, "):
        measure.measure_apart(1)


def test_the_measuring_process_finds_this_package_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        ran.append([*command[:2], command[2].replace("measure.main()", "print(measure.__file__)"), *command[3:]])
        return subprocess.CompletedProcess(command, 0, json.dumps(PROFILE.as_json()), "")

    real = subprocess.run
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(measure.subprocess, "run", run)
    assert measure.measure_apart(2) == PROFILE
    done = real([*ran[0]], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == measure.__file__ and ran[0][-1] == "2"


def test_the_roof_is_the_larger_of_arithmetic_and_traffic() -> None:
    def least(
        flops: int = 0,
        narrow: int = 0,
        integers: int = 0,
        near: int = 0,
        weights: int = 0,
        far: bool = False,
        peaks: Peaks = PEAKS,
    ) -> tuple[float, str]:
        work = {"flops": flops, "narrow_flops": narrow, "integer_ops": integers}
        return least_us(peaks, **work, weight_bytes=weights, other_bytes=near, weights_far=far)

    assert least(flops=1_000_000) == (10.0, "compute")
    assert least(integers=1_000_000) == (2.5, "compute")
    assert least(near=800_000) == (10.0, "memory"), "out of L2"
    assert least(near=4_000_000) == (100.0, "memory"), "out of L3"
    assert least(near=1 << 26) == ((1 << 26) / 20e3, "memory")
    assert least(weights=200_000, far=True) == (10.0, "memory"), "weights that no cache holds"
    assert least(flops=5_000_000, near=800_000) == (50.0, "compute")
    faster = dataclasses.replace(PEAKS, bf16_gflops=200.0)
    assert least(flops=1_000_000, narrow=600_000, peaks=faster) == (7.0, "compute"), "a part of it twice as fast"
    assert least(flops=1_000_000, narrow=600_000) == (4.0, "compute"), "no bound of an unknown speed"


@pytest.mark.parametrize(("dtype", "products"), [("float32", 1), ("int8", 4)])
def test_a_multiplier_counts_the_operations_of_its_kernel(dtype: str, products: int) -> None:
    target = resolve("cpu", cores=1)
    if dtype == "int8" and (not measure.has_int8_dot(target) or target.isa.tiles):
        pytest.skip("other kernels multiply bytes here")
    run, operations = measure.multiplier(target, 2, dtype)
    run(3)
    lanes = target.lanes_f32 if dtype == "float32" else 16
    assert operations == 2 * products * 2 * ACCUMULATORS * lanes


def test_a_reader_counts_the_bytes_of_whole_chunks() -> None:
    target = resolve("cpu", cores=1)
    run, size = measure.reader(target, 1, 100_000)
    run(2)
    assert size <= 100_000 < size + 4 * ACCUMULATORS * target.lanes_f32
