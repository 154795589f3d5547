"""`benchmark` on a real artifact: from a built-in model, and from an ONNX file that must be the original."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from halo_tvm import benchmark, compile_model
from halo_tvm.config import BenchConfig, CompileConfig
from halo_tvm.errors import PeerFailed, UnknownName, UsageError
from halo_tvm.exporters.onnx import export_onnx
from halo_tvm.importers import import_model
from halo_tvm.peers import benchmark as module
from halo_tvm.peers._known import Known
from halo_tvm.report.schema import Accuracy, EngineResult

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("builtin") / "mlp.halo")
    compile_model(CompileConfig(model="mlp", output=path))
    return path


def test_a_built_in_model_against_onnxruntime(artifact):
    result = benchmark(BenchConfig(artifact=artifact, vs=("onnxruntime",), shape="batch=3", rounds=2, threads=1))
    assert [e.engine for e in result.engines] == ["halo_tvm", "onnxruntime"] and result.inputs == {"x": (3, 1024)}
    for engine in result.engines:
        assert engine.failure is None and len(engine.samples_ms) == 2 and engine.version
        assert engine.accuracy.cases >= 1 and engine.accuracy.relative_l2 < 1e-5, "the peer has the same weights"
    assert result.comparisons[0].peer == "onnxruntime" and result.threads == 1


def test_unknown_engines_are_named_before_any_work(artifact):
    with pytest.raises(UnknownName, match="did you mean 'onnxruntime'"):
        benchmark(BenchConfig(artifact=artifact, vs=("onnxruntme",)))


def test_a_peer_whose_worker_dies_at_once_is_part_of_the_result(artifact, monkeypatch):
    monkeypatch.setitem(module.PEERS, "onnxruntime", module.PeerKind("_not_there", "onnx"))
    result = benchmark(BenchConfig(artifact=artifact, vs=("onnxruntime",), shape="batch=1", rounds=1, threads=1))
    assert "exit code 1" in result.engines[1].failure and result.comparisons == ()


def test_artifacts_of_the_same_name_keep_their_folders(artifact, tmp_path):
    paths = [str(tmp_path / folder / "mlp.halo") for folder in ("x", "y")]
    for path in paths:
        shutil.copytree(artifact, path)
    again = f"{tmp_path}/./x/mlp.halo"
    config = BenchConfig(artifact=artifact, vs=(*paths, paths[0], again), shape="batch=1", rounds=1, threads=1)
    result = benchmark(dataclasses.replace(config, cache=str(tmp_path / "cache")))
    assert [e.engine for e in result.engines] == ["halo_tvm", "x/mlp.halo", "y/mlp.halo"], "and each runs once"
    assert [c.peer for c in result.comparisons] == ["x/mlp.halo", "y/mlp.halo"]
    assert not (tmp_path / "cache").exists(), "artifacts have no files to keep"


def test_known_errors_survive_a_file_that_was_left_half_written(tmp_path):
    known, error = Known(tmp_path), Accuracy(2, 1e-3, 1e-6)
    known.learn([EngineResult("onnxruntime", "1.2", accuracy=error), EngineResult("halo_tvm", "1", accuracy=error)])
    assert Known(tmp_path).of("onnxruntime") == {"1.2": error} and not Known(tmp_path).of("halo_tvm")
    for damaged in ('{"onnxruntime": {"1.2": {"cases"', "[]", '{"onnxruntime": {"1.2": {"cases": 1}}}', '{"a": 3}', ""):
        (tmp_path / "accuracy.json").write_text(damaged)
        assert Known(tmp_path).of("onnxruntime") == {}
    Known(tmp_path).learn([EngineResult("onnxruntime", "1.2", accuracy=error)])
    assert [path.name for path in tmp_path.iterdir()] == ["accuracy.json"]


def test_an_onnx_source_needs_the_original_file(tmp_path):
    original, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    export_onnx(import_model("mlp"), original)
    export_onnx(import_model("mlp", shapes=("x=4x1024",)), other)
    artifact = str(tmp_path / "m.halo")
    compile_model(CompileConfig(model=str(original), output=artifact))

    def config(reference):
        return BenchConfig(
            artifact=artifact, vs=("onnxruntime", "torch"), reference=reference, shape="batch=2", rounds=1, threads=1
        )

    with pytest.raises(UsageError, match="found no --reference"):
        benchmark(config(None))
    with pytest.raises(UsageError, match="expected the model the artifact was made of"):
        benchmark(config(str(other)))
    result = benchmark(config(str(original)))
    assert result.reference == "onnxruntime"
    ours, ort, torch = result.engines
    assert ort.failure is None and ours.accuracy.relative_l2 < 1e-5
    assert "found a source of kind onnx: use --vs onnxruntime" in torch.failure


def test_a_broken_artifact_is_our_failure(artifact, monkeypatch):
    monkeypatch.setattr(module, "OURS", "ours")
    monkeypatch.setattr(module, "engine_command", lambda name: ["false"])
    with pytest.raises(
        PeerFailed, match="engine ours: expected a reply to 'load', but its process ended with exit code 1"
    ):
        benchmark(BenchConfig(artifact=artifact, shape="batch=1", rounds=1, threads=1))
