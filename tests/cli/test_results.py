"""`validate` and `profile`: one result, three views; an original model as the reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import write_checkpoint
from onnx import TensorProto, helper, numpy_helper

import halo_tvm
from halo_tvm.artifact import read_manifest
from halo_tvm.cli import main
from halo_tvm.errors import UsageError
from halo_tvm.report import schema


def write_onnx(path: Path, seed: int) -> Path:
    """relu(x @ w), w seeded."""
    weight = np.random.default_rng(seed).standard_normal((8, 16)).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [3, 8]), ("y", [3, 16])))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with originals and what they were compiled into."""
    root = tmp_path_factory.mktemp("made")
    write_onnx(root / "m.onnx", 0)
    write_checkpoint(root / "gpt2", "gpt2")
    shape = ["--shape", "input_ids=1..2x4..32"]
    assert main(["compile", "--model", str(root / "m.onnx"), "-o", str(root / "onnx.halo")]) == 0
    assert main(["compile", "--model", str(root / "gpt2"), "-o", str(root / "gpt2.halo"), *shape]) == 0
    return root


@pytest.mark.slow
def test_validate_writes_every_view_of_one_result(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "v.json"), "--markdown", str(tmp_path / "v.md")]
    assert main(["validate", str(made / "gpt2.halo"), *files]) == 0
    result = schema.from_json(json.loads((tmp_path / "v.json").read_text()))
    assert result.kind == "validate" and result.passed and result.reference == "NumPy (float64)"
    assert [*dict.fromkeys(o.case for o in result.outputs)] == ["case0", "case1"]
    assert {o.output for o in result.outputs} == {"logits", "prefill.logits", "decode.logits"}
    assert all(o.passed and 0 < o.max_abs <= o.limit and o.top1 == 1.0 for o in result.outputs)
    assert "against NumPy (float64): passed" in capsys.readouterr().out
    assert (tmp_path / "v.md").read_text().startswith("### gpt2 against NumPy (float64): passed")
    assert main(["validate", str(made / "onnx.halo")]) == 0
    assert "against onnxruntime: passed" in capsys.readouterr().out


def test_a_failed_validation_is_shown_and_ends_with_3(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(made / "onnx.halo" / "reference.npz") as arrays:
        np.savez(tmp_path / "wrong.npz", **{k: a + (1 if ".output." in k else 0) for k, a in arrays.items()})
    capsys.readouterr()
    words = ["--reference", str(tmp_path / "wrong.npz"), "--json", "-"]
    assert main(["validate", str(made / "onnx.halo"), *words]) == 3
    captured = capsys.readouterr()
    result = schema.from_json(json.loads(captured.out))
    assert not result.passed and result.reference == "the arrays given"
    assert result.outputs[0].max_abs == pytest.approx(1, abs=1e-5)
    assert "halo-tvm: error: output 'y' of case " in captured.err
    assert f"{len(result.outputs)} of {len(result.outputs)} outputs are off" in captured.err


def test_compile_keeps_its_validation_in_the_manifest(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = read_manifest(made / "gpt2.halo").validation
    assert entry["passed"] and {"case", "output", "max_abs_error", "bound"} <= set(entry["outputs"][0])
    assert main(["inspect", str(made / "gpt2.halo")]) == 0
    assert "validation  passed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["onnx", "gpt2"])
def test_the_original_is_evaluated_again(made: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    original = made / ("m.onnx" if name == "onnx" else "gpt2")
    capsys.readouterr()
    words = ["--reference", str(original), "--seed", "5", "--json", "-"]
    assert main(["validate", str(made / f"{name}.halo"), *words]) == 0
    again = schema.from_json(json.loads(capsys.readouterr().out))
    assert main(["validate", str(made / f"{name}.halo"), "--json", "-"]) == 0
    stored = schema.from_json(json.loads(capsys.readouterr().out))
    assert again.reference == stored.reference and len(again.outputs) == len(stored.outputs)
    assert again.outputs[0].limit != stored.outputs[0].limit, "another seed: other inputs, other outputs"
    assert halo_tvm.validate_artifact(str(made / f"{name}.halo"), reference=str(original))["passed"]


def test_another_model_is_no_original(made: Path, tmp_path: Path) -> None:
    def validate(name: str, reference: Path) -> None:
        halo_tvm.validate_artifact(str(made / name), reference=str(reference))

    with pytest.raises(UsageError, match="expected the model the artifact was made of .*, found .*: give the original"):
        validate("onnx.halo", write_onnx(tmp_path / "m.onnx", 1))
    with pytest.raises(UsageError, match="expected the model the artifact was made of .*, found .*: give the original"):
        validate("gpt2.halo", write_checkpoint(tmp_path / "gpt2", "gpt2", n_layer=1))
    with pytest.raises(UsageError, match="expected the original ONNX file at .*, found none"):
        validate("onnx.halo", made / "gpt2")
    with pytest.raises(UsageError, match="expected the original directory at .*, found none"):
        validate("gpt2.halo", tmp_path / "nowhere")


def test_profile_writes_every_view_of_one_result(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "p.json"), "--markdown", str(tmp_path / "p.md")]
    assert main(["profile", str(made / "gpt2.halo"), "--rounds", "3", "--no-measure", *files]) == 0
    result = schema.from_json(json.loads((tmp_path / "p.json").read_text()))
    assert result.kind == "profile" and result.rounds == 3 and result.inputs == {"input_ids": (1, 32)}
    assert {"gemm", "flash_attention"} <= {kernel.rule for kernel in result.kernels}
    assert result.total_us == pytest.approx(sum(kernel.total_us for kernel in result.kernels))
    out = capsys.readouterr().out
    assert "kernels, median of 3 runs" in out and "flash_attention" in out
    assert "| kernel | rule | calls |" in (tmp_path / "p.md").read_text()
