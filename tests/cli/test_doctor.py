"""doctor: what it finds, what it calls a problem, what it measures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from halo_tvm.ceilings import HostProfile, kernels
from halo_tvm.ceilings.measure import VNNI
from halo_tvm.cli import doctor, main
from halo_tvm.targets import read_host, resolve


def test_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["software"]["self_check"] is None
    assert found["software"]["apache-tvm"]["found"] == found["software"]["apache-tvm"]["pinned"]
    assert found["host"]["cores"] >= 1
    assert found["targets"]["c"] == {"build": True, "build_note": "", "run": True, "run_note": ""}


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_self_check", lambda: None)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "ISA level of `cpu`" in out and "doctor --measure" in out and "problem:" not in out


def test_other_versions_are_a_problem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "0.1.15" if name == "apache-tvm-ffi" else version(name))
    monkeypatch.setattr(doctor.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, -11, "", ""))
    assert main(["doctor"]) == 5
    out = capsys.readouterr().out
    assert "problem: apache-tvm-ffi must be version 0.1.14.post1, but found version 0.1.15: run `pip install" in out
    assert "its process ended by signal 11" in out


@pytest.mark.parametrize(
    ("ffi", "advice"),
    [(doctor._version("apache-tvm-ffi"), "the machine is too busy"), ("0.1.15", "install the pinned")],
)
def test_a_busy_machine_is_no_broken_installation(
    ffi: str, advice: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: object, timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: ffi if name == "apache-tvm-ffi" else version(name))
    monkeypatch.setattr(doctor.subprocess, "run", late)
    assert main(["doctor"]) == 5
    assert f"its process gave no answer within 120 s: {advice}" in capsys.readouterr().out


def test_measurement_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"fma_gflops": 100.0, "l2_gbps": 60.0, "l3_gbps": 40.0, "dram_gbps": 20.0}
    both = {1: rates, 2: {**rates, "bf16_gflops": 190.0, "int8_gops": 400.0}}
    profile = HostProfile("cpu", "x86_64", "avx2", "2026-01-01T00:00:00Z", both)
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(doctor, "_self_check", lambda: None)
    monkeypatch.setattr(doctor, "measure_apart", lambda threads: profile)
    assert main(["doctor", "--measure"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["1", "100", "-", "-", "60", "40", "20"],
        ["2", "100", "190", "400", "60", "40", "20"],
    ]
    assert json.loads((tmp_path / "home" / "host.json").read_text()) == profile.as_json()
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["host.json"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 100_000, '{"by_threads": {"1": 3}}'])
def test_a_damaged_profile_is_said_by_the_verb_that_repairs_it(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "_self_check", lambda: None)
    (tmp_path / "host.json").write_text(text)
    assert main(["doctor"]) == 0
    assert "no ceilings: host.json is no host profile" in capsys.readouterr().out


def test_kernels_compute_what_they_claim() -> None:
    """The ceilings are honest only if every multiply-add and every read happens."""
    import numpy as np
    import tvm

    target = resolve("cpu", host=read_host(), cores=1)
    lanes = target.lanes_f32
    out = tvm.runtime.tensor(np.ones((1, kernels.ACCUMULATORS, lanes), "float32"))
    kernels.compiled(kernels.fma_kernel(1, lanes), target)(out, 5)
    expected = 1.0
    for _ in range(5):
        expected = expected * 0.999 + 0.5
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    x = np.random.default_rng(0).standard_normal((1, 7, kernels.ACCUMULATORS, lanes), dtype="float32")
    kernels.compiled(kernels.read_kernel(1, lanes, 7), target)(tvm.runtime.tensor(x), out, 3)
    np.testing.assert_allclose(out.numpy(), 3 * x.sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(VNNI not in read_host().flags, reason="the CPU has no 8-bit dot product")
def test_the_dot_kernel_multiplies_every_byte() -> None:
    import numpy as np
    import tvm

    target = resolve("cpu", host=read_host(), cores=1)
    out = tvm.runtime.tensor(np.full((1, kernels.ACCUMULATORS, 16), 7, "int32"))
    kernel = kernels.compiled(kernels.dot_kernel(1), target)
    kernel(out, 5)
    assert (out.numpy() == 7 + 5 * 4 * 3 * 2).all()


@pytest.mark.skipif(not resolve("cpu", precision="bf16").isa.bf16_dot, reason="the CPU is not faster at bfloat16")
def test_the_pair_kernel_multiplies_both_of_every_pair() -> None:
    import numpy as np
    import tvm

    out = tvm.runtime.tensor(np.full((1, kernels.ACCUMULATORS, 16), 7, "float32"))
    kernels.compiled(kernels.pair_kernel(1), resolve("cpu", cores=1, precision="bf16"))(out, 5)
    assert (out.numpy() == 7 + 5 * (1 * 3 + 2 * 0.5)).all()


@pytest.mark.skipif(not resolve("cpu", precision="int8").isa.tiles, reason="the CPU has no AMX")
@pytest.mark.parametrize(("dtype", "product"), [("int32", 64 * 3 * 2), ("float32", 16 * (1 * 3 + 2 * 0.5))])
def test_the_tile_kernel_multiplies_all_of_a_row(dtype: str, product: float) -> None:
    import numpy as np
    import tvm

    out = tvm.runtime.tensor(np.full((1, kernels.TILES, 16, 16), 7, dtype))
    kernels.compiled(kernels.tile_kernel(1, dtype), resolve("cpu", cores=1, precision="int8"))(out, 5)
    assert (out.numpy() == 7 + 5 * product).all()
