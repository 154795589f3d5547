"""`profile`: a roof over every kernel, three groupings, and what an artifact of another release cannot say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from halo_tvm.artifact import read_manifest, update_manifest
from halo_tvm.ceilings import HostProfile, Peaks
from halo_tvm.cli import _peaks, _profiling, main
from halo_tvm.errors import EnvironmentProblem
from halo_tvm.report import markdown, schema
from halo_tvm.runtime.tracing import Call
from halo_tvm.targets import read_host


def write_host(directory: Path, **changes: object) -> None:
    """A host.json of this very machine with ceilings of one thread."""
    host = read_host()
    rates = {"fma_gflops": 100.0, "int8_gops": 400.0, "l2_gbps": 80.0, "l3_gbps": 40.0, "dram_gbps": 20.0}
    profile = HostProfile(host.model, host.machine, "any", "2026-01-01T00:00:00Z", {1: rates})
    dataclasses.replace(profile, **changes).save(directory / "host.json")


def profiled(artifact: Path, path: Path, *words: str) -> schema.ProfileResult:
    assert main(["profile", str(artifact), "--threads", "1", "--rounds", "2", "--json", str(path), *words]) == 0
    result = schema.from_json(json.loads(path.read_text()))
    assert isinstance(result, schema.ProfileResult)
    return result


@pytest.mark.slow
def test_every_kernel_has_its_work_and_its_roof(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    write_host(tmp_path)
    result = profiled(artifact, tmp_path / "p.json", "--shape", "batch=1,sequence=16")
    assert result.peaks is not None and result.peaks.int8_gops == 400.0
    operators = {kernel.operator for kernel in result.kernels}
    assert {"linear", "attention", "layer_norm", "embedding"} <= operators
    for kernel in result.kernels:
        work = kernel.work
        assert work.flops is not None and work.bytes and work.limit_us and work.bound in ("compute", "memory")
        assert 0 <= work.weight_bytes <= work.bytes
    assert result.total_us == pytest.approx(sum(call.us for call in result.calls))
    assert result.run_us > 0 and result.memory.params_mib > 0 and result.memory.planned_mib > 0
    out = capsys.readouterr().out
    assert "of the roof" in out and "whole run" in out and "ceilings with 1 thread: 100 GFLOP/s" in out


def test_groups_are_the_same_time(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    result = profiled(
        artifact, tmp_path / "p.json", "--no-measure", "--by", "layer", "--markdown", str(tmp_path / "p.md")
    )
    assert result.peaks is None and "peaks unknown" in result.notes[0]
    layers = [call.layer for call in result.calls]
    assert {"h.0", "h.1", "ln_f"} <= set(layers) and layers.index("h.0") < layers.index("h.1")
    assert {c.layer for c in result.calls if c.operator == "attention"} == {"h.0", "h.1"}
    assert "| layer | slowest operator | calls |" in (tmp_path / "p.md").read_text()
    assert main(["profile", str(artifact), "--by", "operator", "--rounds", "1", "--no-measure"]) == 0
    assert "operator    " in capsys.readouterr().out
    assert main(["profile", str(artifact), "--by", "magic"]) == 1
    assert "known are kernel, layer, operator" in capsys.readouterr().err


def test_artifacts_that_say_nothing_of_work_are_timed_all_the_same(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path / "home"))
    old = tmp_path / "old.halo"
    shutil.copytree(artifact, old)
    manifest = read_manifest(old)
    functions = [dict(entry) for entry in manifest.reports["schedule"]["functions"]]
    for index, entry in enumerate(functions):
        entry["work"] = [None, {"shapes": 3}, {"shapes": [], "flops": "x", "bytes": []}][index % 3]
    update_manifest(
        old, reports={**manifest.reports, "schedule": {**manifest.reports["schedule"], "functions": functions}}
    )
    result = profiled(old, tmp_path / "p.json", "--no-measure")
    assert result.total_us > 0 and all(kernel.work.flops is None for kernel in result.kernels)
    assert "compile again" in markdown.render(result)


def test_ceilings_of_others_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    write_host(tmp_path, cpu="another")
    found, why = _peaks.peaks_of(1, measure=False)
    assert found is None and "of another machine" in why and "doctor --measure" in why

    def fails(threads: int) -> None:
        raise EnvironmentProblem("measuring ended with its last words")

    monkeypatch.setattr(_peaks, "measure_apart", fails)
    found, why = _peaks.peaks_of(1)
    assert found is None and "of another machine" in why and "its last words" in why


def test_kernels_of_another_function_are_its_own(artifact: Path) -> None:
    """`decode` has its own attention under main's name with a number; what it shares is in any report."""

    def told(**rules: str) -> dict[str, object]:
        return {"schedule": {"functions": [{"function": name, "rule": rule} for name, rule in rules.items()]}}

    functions = {"decode": told(attention="cached", add="own"), "prefill": told(norm="shared", attention="third")}
    reports = {**told(attention="flash", add="mains"), "functions": functions}
    manifest = dataclasses.replace(read_manifest(artifact), reports=reports)
    found = _profiling.KernelReports.of(manifest, "decode")
    rules = {name: found.entry(name).rule for name in ("attention_e2", "attention", "add", "norm", "norm_e1", "none")}
    assert rules == {
        "attention_e2": "cached",
        "attention": "flash",
        "add": "mains",
        "norm": "shared",
        "norm_e1": "shared",
        "none": "",
    }
    assert _profiling.KernelReports.of(manifest, "main").entry("attention").rule == "flash"


@pytest.mark.parametrize(
    ("params", "layer"),
    [(["w1|windows/1/n8"], "w1"), (["w", "h.3.w|n16"], "h.3"), (["ln_f.weight|i8/k4"], "ln_f"), ([], "")],
)
def test_layers_have_no_packing_in_their_names(params: list[str], layer: str) -> None:
    assert _profiling._layer_of(params) == layer


@pytest.mark.parametrize(("narrow", "us"), [(None, 10.0), (600, 7.0), (10**6, 5.0)])
def test_products_of_16_bits_have_their_own_peak(narrow: int | None, us: float) -> None:
    peaks = Peaks(1, 100.0, 1e6, 1e6, 1e6, None, 1 << 20, 1 << 25, "", bf16_gflops=200.0)
    work = {"shapes": [["m"]], "flops": ["*", "m", 1000], "integer_ops": 0, "bytes": ["m"]}
    if narrow is not None:
        work["narrow_flops"] = ["*", "m", narrow]
    assert _profiling._work_of(Call("f", ((1000,),), (None,), 1.0), work, peaks, False).limit_us == pytest.approx(us)


def test_ceilings_are_measured_where_none_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    rates = {"fma_gflops": 100.0, "l2_gbps": 80.0, "l3_gbps": 40.0, "dram_gbps": 20.0}
    monkeypatch.setattr(_peaks, "measure_apart", lambda threads: HostProfile("", "", "", "now", {threads: rates}))
    found, why = _peaks.peaks_of(2)
    assert found.threads == 2 and found.fma_gflops == 100.0 and found.int8_gops is None
    assert "measured just now" in why and "doctor --measure" in why
