"""`--precision int8` from a model to a validated artifact, for every kind of source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint

import halo_tvm
from halo_tvm.artifact import read_manifest, read_params_header
from halo_tvm.cli.inspect import describe
from halo_tvm.compilation import Compilation
from halo_tvm.config import CompileConfig, TuneConfig
from halo_tvm.errors import UsageError
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate
from halo_tvm.phases import lower
from halo_tvm.reference import random_inputs
from halo_tvm.targets import resolve
from halo_tvm.tuning.task import tasks_of

KINDS = ("gpt2", "bert", "llama", "onnx")


def _onnx(path: Path) -> Path:
    import onnx
    from onnx import helper

    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((32, 64)).astype("float32") / 6,
        "b1": np.zeros(64, "float32"),
        "w2": rng.standard_normal((64, 12)).astype("float32") / 8,
        "odd": np.eye(12, 6, dtype="float32"),
        "last": rng.standard_normal((6, 4)).astype("float32"),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Add", ["a", "b1"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w2"], ["d"]),
        helper.make_node("MatMul", ["d", "odd"], ["e"]),
        helper.make_node("MatMul", ["e", "last"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", 1, ["rows", 32])],
        [helper.make_tensor_value_info("y", 1, ["rows", 4])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """(source, int8 artifact) of every kind; compiling validates."""
    root = tmp_path_factory.mktemp("precision")
    pairs = {}
    for kind in KINDS:
        source = _onnx(root / "mlp.onnx") if kind == "onnx" else write_checkpoint(root / kind, kind)
        artifact = root / f"{kind}.halo"
        halo_tvm.compile_model(CompileConfig(model=str(source), output=str(artifact), precision="int8"))
        pairs[kind] = (source, artifact)
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(1, 2)
def test_an_artifact_is_validated_by_the_tolerance_of_its_precision(made, kind: str) -> None:
    manifest = read_manifest(made[kind][1])
    assert manifest.precision == "int8" and manifest.validation["passed"]
    assert manifest.validation["precision"] == "int8" and manifest.validation["tolerance"]["relative_l2"] == 0.25
    for row in manifest.validation["outputs"]:
        assert 1e-5 < row["relative_l2"] < 0.1 and row["bound_from"] == "tolerance of int8"
    assert not any(str(entry["rule"]).startswith("fallback") for entry in manifest.reports["schedule"]["functions"])


@pytest.mark.parametrize(
    ("kind", "linears", "activations", "tied"), [("gpt2", 9, 0, 1), ("bert", 8, 8, 0), ("llama", 9, 0, None)]
)
def test_every_linear_and_the_head_are_quantised(made, kind: str, linears: int, activations: int, tied) -> None:
    """Language models in groups, whose products round their rows themselves."""
    manifest = read_manifest(made[kind][1])
    report = manifest.reports["optimise"]["quantise"]
    assert (report["linears"], report["activations"], report["kept"]) == (linears, activations, [])
    assert tied is None or len(report["tied_embeddings"]) == tied
    headers = read_params_header(made[kind][1] / "params.bin")
    wide = [name for name, entry in headers.items() if entry.dtype == "float32" and len(entry.shape) > 1]
    allowed = ("embed", "wpe", "rotary")  # tables that are read by rows
    assert all(any(word in name for word in allowed) for name in wide), f"float32 matrices: {wide}"


def test_what_stays_is_reported_and_shown(made) -> None:
    manifest = read_manifest(made["onnx"][1])
    (kept,) = manifest.reports["optimise"]["quantise"]["kept"]
    assert kept["reason"].startswith("k = 6 is no multiple of 4")
    text = describe(manifest)
    assert "precision int8" in text and "quantised   3 linears, 3 activations; kept in fp32: 1" in text
    assert "k = 6 is no multiple of 4" in text and "i8/k4/n" in text and "f32/k1/n" in text
    assert "int8: relative L2 error" in text


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_batch_equals_its_rows(made, kind: str) -> None:
    """Quantisation is per row, and the order of sums does not depend on the number of rows."""
    source, artifact = made[kind]
    model = import_model(str(source))
    inputs = random_inputs(model.inputs, {"batch": 3, "sequence": 16}, seed=1)
    with halo_tvm.load(str(artifact)) as module:
        whole = module(**inputs)
        for at in range(3):
            np.testing.assert_array_equal(module(**{k: v[at : at + 1] for k, v in inputs.items()})[0], whole[at])


@pytest.mark.slow
def test_layers_are_skipped_by_name(made, tmp_path: Path) -> None:
    source, artifact = made["gpt2"]
    config = CompileConfig(
        model=str(source),
        output=str(tmp_path / "m.halo"),
        precision="int8",
        overrides={"passes": {"quantise": {"skip": ["*c_proj*"]}}},
    )
    halo_tvm.compile_model(config)
    manifest = read_manifest(tmp_path / "m.halo")
    report = manifest.reports["optimise"]["quantise"]
    assert report["linears"] == 5 and len(report["kept"]) == 4
    assert {entry["reason"] for entry in report["kept"]} == {"skip names it: *c_proj*"}
    assert sum(name.startswith("f32/") for name in manifest.pack_formats) > 0

    # One input of a random model may say otherwise: the errors of the layers partly cancel.
    model = import_model(str(source))
    texts = random_inputs(model.inputs, {"batch": 8, "sequence": 16}, seed=2)
    exact = evaluate(model, texts)["logits"]

    def error(path: Path) -> float:
        with halo_tvm.load(str(path)) as module:
            return float(np.linalg.norm(module(**texts) - exact) / np.linalg.norm(exact))

    assert error(tmp_path / "m.halo") < 0.95 * error(artifact)


def test_tuning_finds_the_functions_that_compiling_makes(made) -> None:
    source, _ = made["gpt2"]
    config = TuneConfig(model=(str(source),), precision="int8")
    target = resolve("cpu", precision="int8")
    keys = []
    for options in (config.compile_config(str(source)), CompileConfig(model=str(source), precision="int8")):
        model = import_model(str(source))
        mod, _ = lower(model, Compilation.of(options, target))
        keys.append({task.key for task in tasks_of(mod, target, model.ranges).tasks})
    assert keys[0] == keys[1] and len(keys[0]) >= 6


def test_a_model_without_its_pass_is_refused(made, tmp_path: Path) -> None:
    for options in ({"opt_level": "0"}, {"disable": ("quantise",)}):
        with pytest.raises(UsageError, match="--precision int8 needs opt level 1 or more and the pass quantise"):
            halo_tvm.compile_model(
                CompileConfig(model="mlp", output=str(tmp_path / "m.halo"), precision="int8", **options)
            )
