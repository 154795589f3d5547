"""`profile`: a roof over every kernel, three groupings, and what an artifact of another release cannot say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import write_checkpoint

from halo_tvm.artifact import read_manifest, update_manifest
from halo_tvm.cli import _peaks
from halo_tvm.cli._main import main
from halo_tvm.cli._profiling import least_us
from halo_tvm.report import markdown, schema
from halo_tvm.report.schema import Peaks
from halo_tvm.targets import read_host

PEAKS = Peaks(1, 100.0, 80.0, 40.0, 20.0, 400.0, 1 << 20, 1 << 25, "2026-01-01T00:00:00Z")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_checkpoint(root / "gpt2", "gpt2")
    words = ["-o", str(root / "gpt2.halo"), "--no-validate", "--shape", "input_ids=1..2x4..32"]
    assert main(["compile", "--model", str(root / "gpt2"), *words]) == 0
    return root / "gpt2.halo"


def write_host(directory: Path, **changes: object) -> None:
    """A host.json of this very machine with the ceilings of PEAKS."""
    host = read_host()
    rates = {"fma_gflops": 100.0, "l2_gbps": 80.0, "l3_gbps": 40.0, "dram_gbps": 20.0}
    body = {
        "schema": 1, "cpu": host.model, "machine": host.machine, "isa": "any", "threads": 1,
        "fma_gflops_one_thread": 100.0, **rates, "measured_at": "2026-01-01T00:00:00Z",
        "by_threads": {"1": {**rates, "int8_gops": 400.0}}, **changes,
    }  # fmt: skip
    directory.mkdir(exist_ok=True)
    (directory / "host.json").write_text(json.dumps(body))


def profiled(artifact: Path, path: Path, *words: str) -> schema.ProfileResult:
    assert main(["profile", str(artifact), "--threads", "1", "--rounds", "2", "--json", str(path), *words]) == 0
    result = schema.from_json(json.loads(path.read_text()))
    assert isinstance(result, schema.ProfileResult)
    return result


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


def test_the_roof_is_the_larger_of_arithmetic_and_traffic() -> None:
    def least(
        flops: int = 0, integers: int = 0, near: int = 0, weights: int = 0, far: bool = False
    ) -> tuple[float, str]:
        work = {"flops": flops, "integer_ops": integers, "bytes": near + weights, "weight_bytes": weights}
        return least_us(work, PEAKS, far)

    assert least(flops=1_000_000) == (10.0, "compute")
    assert least(integers=1_000_000) == (2.5, "compute")
    assert least(near=800_000) == (10.0, "memory"), "out of L2"
    assert least(near=4_000_000) == (100.0, "memory"), "out of L3"
    assert least(near=1 << 26) == ((1 << 26) / 20e3, "memory")
    assert least(weights=200_000, far=True) == (10.0, "memory"), "weights that no cache holds"
    assert least(flops=5_000_000, near=800_000) == (50.0, "compute")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpu": "another"}, "of another machine"),
        ({"threads": 7, "by_threads": {}}, "has no rates for 1 threads"),
        ({"by_threads": {"1": {"fma_gflops": "fast"}}}, "holds rates that are none"),
        ({"by_threads": {"1": {"fma_gflops": 0}}}, "holds rates that are none"),
    ],
)
def test_ceilings_of_others_are_not_believed(
    changes: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    write_host(tmp_path, **changes)
    found, why = _peaks.peaks_of(1, measure=False)
    assert found is None and words in why and "doctor --measure" in why
    (tmp_path / "host.json").write_text("{")
    assert "cannot be read" in _peaks.peaks_of(1, measure=False)[1]


def test_a_host_file_of_one_thread_count_serves_that_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of earlier releases have no `by_threads`."""
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    write_host(tmp_path, by_threads={})
    found, _ = _peaks.peaks_of(1, measure=False)
    assert found is not None and found.fma_gflops == 100.0 and found.int8_gops is None


def test_measured_ceilings_are_checked_like_kept_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HALO_TVM_HOME", str(tmp_path))
    monkeypatch.setattr(_peaks, "_MEASURE", "import sys; sys.exit(3)")
    found, why = _peaks.peaks_of(1)
    assert found is None and "measuring them now ended with CalledProcessError" in why
    monkeypatch.setattr(_peaks, "_MEASURE", 'print(\'{"machine": "m"}\')')
    assert "of another machine" in _peaks.peaks_of(1)[1]
