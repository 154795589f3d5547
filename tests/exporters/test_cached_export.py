"""Language models as ONNX files whose caches come in and go out: steps of them are the model on the whole text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import write_checkpoint
from onnx import numpy_helper

from halo_tvm.cli import main
from halo_tvm.errors import UnsupportedModel
from halo_tvm.exporters.cached import GENAI, Stepper, export_for_genai, write_genai_config
from halo_tvm.exporters.comparison import session_of
from halo_tvm.exporters.gguf import export_gguf
from halo_tvm.importers import import_model
from halo_tvm.importers.gguf.container import read_gguf
from halo_tvm.interpreter import evaluate

WINDOWED = {"model_type": "mistral", "sliding_window": 4}


@pytest.mark.parametrize("engine", ["portable", "onnxruntime"])
@pytest.mark.parametrize(("family", "changes"), [("llama", WINDOWED), ("gpt2", {})], ids=["windowed", "gpt2"])
def test_steps_are_the_model(tmp_path: Path, family: str, changes: dict[str, object], engine: str) -> None:
    """Two texts at once; `export` itself has compared longer steps of one text with the model."""
    write_checkpoint(tmp_path / "model", family, **changes)
    file = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path / "model"), "-o", str(file), "--caches", "--for", engine]) == 0
    imported = import_model(str(tmp_path / "model"))
    stepper = Stepper(session_of(file, 1))
    ids = np.random.default_rng(1).integers(0, 90, (2, 8))
    stepper.begin(batch=2)
    found = np.concatenate([stepper.read(ids[:, a:b]) for a, b in ((0, 6), (6, 7), (7, 8))], axis=1)
    wanted = evaluate(imported, {"input_ids": ids})["logits"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    operators = [node.op_type for node in onnx.load(file, load_external_data=False).graph.node]
    assert operators.count("GroupQueryAttention") == (2 if engine == "onnxruntime" else 0)
    assert (tmp_path / GENAI).exists() == (engine == "onnxruntime")


def test_one_vector_of_a_token_comes_in_and_goes_out(tmp_path: Path) -> None:
    """Attention over latents, whose products head by head are one of all heads; other engines take no such caches."""
    directory, file = str(write_checkpoint(tmp_path / "m", "deepseek_v3", first_k_dense_replace=1)), tmp_path / "m.onnx"
    assert main(["export", directory, "-o", str(file), "--caches", "--for", "onnxruntime"]) == 0
    names = [spec.name for spec in onnx.load(file, load_external_data=False).graph.input]
    assert [name for name in names if name.startswith("past")] == ["past_key_values.0.key"]
    assert not (tmp_path / GENAI).exists()
    with pytest.raises(UnsupportedModel, match="found one vector of a token for both: leave onnxruntime-genai out"):
        export_for_genai(directory, tmp_path / "genai")


def test_padding_in_front_is_hidden(tmp_path: Path) -> None:
    """A row that its mask pads in front says what it says alone."""
    write_checkpoint(tmp_path / "model", "llama")
    file = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path / "model"), "-o", str(file), "--caches"]) == 0
    stepper = Stepper(session_of(file, 1))
    ids = np.random.default_rng(2).integers(0, 90, (1, 5))
    alone = stepper.read(ids)
    stepper.begin()
    feeds = stepper.feeds(np.concatenate([np.zeros((1, 3), np.int64), ids], axis=1))
    feeds |= {"attention_mask": np.array([[0] * 3 + [1] * 5]), "position_ids": np.array([[0, 0, 0, 0, 1, 2, 3, 4]])}
    padded = stepper.session.run(["logits"], feeds)[0][:, 3:]
    np.testing.assert_allclose(padded, alone, rtol=0, atol=1e-5 * np.abs(alone).max())


def test_the_config_of_onnxruntime_genai_names_what_is_in_the_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", "llama")
    file = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path / "model"), "-o", str(file), "--caches", "--for", "onnxruntime"]) == 0
    decoder = json.loads((tmp_path / GENAI).read_text())["model"]["decoder"]
    graph = onnx.load(file, load_external_data=False).graph
    layers = range(decoder["num_hidden_layers"])
    inputs = {name % i for name in decoder["inputs"].values() for i in layers if "%d" in name}
    outputs = {name % i for name in decoder["outputs"].values() for i in layers if "%d" in name}
    plain = {"input_ids", "attention_mask", "position_ids"}
    assert {value.name for value in graph.input} == inputs | plain
    assert {value.name for value in graph.output} == outputs | {"logits"}
    (tmp_path / GENAI).write_text("{}")
    with pytest.raises(Exception, match="expected no genai_config.json of another model beside model.onnx"):
        write_genai_config(import_model(str(tmp_path / "model")).with_past(False), file)


@pytest.mark.parametrize(("numbers", "bits"), [("Q8_0", 8), ("Q4_0", 4)])
def test_integers_are_those_of_gguf(tmp_path: Path, numbers: str, bits: int) -> None:
    """What MatMulNBits reads of a weight means what the same weight of a GGUF file means."""
    write_checkpoint(tmp_path / "model", "llama")
    export_for_genai(str(tmp_path / "model"), tmp_path / "genai", numbers)
    model = onnx.load(tmp_path / "genai" / "model.onnx")
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    name = "model.layers.1.mlp.down_proj.weight"
    integers, scales = held[f"{name}.integers"], held[f"{name}.scales"]
    if bits == 4:
        integers = np.stack([integers & 15, integers >> 4], axis=-1).reshape(*integers.shape[:2], 32)
    found = (integers.astype(np.float32) - (1 << bits - 1)) * scales[..., None]
    tensor = read_gguf(export_gguf(str(tmp_path / "model"), tmp_path / "m.gguf", numbers)).tensors
    stored = tensor["blk.1.ffn_down.weight"]
    wanted = stored.kind.floats(stored.blocks()).reshape(stored.shape)
    np.testing.assert_allclose(found.reshape(len(found), -1), wanted, rtol=1e-6)
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "MatMulNBits")]
    assert {node.op_type for node in products} == {"MatMulNBits"} and name not in held
    logits = model.graph.output[0].type.tensor_type.shape.dim
    assert logits[1].dim_value == 1, "onnxruntime-genai has to see that these are of the last token"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--type", "Q4_1", "--for", "onnxruntime"], "expected --type F32, Q8_0 or Q4_0 beside m.onnx, found Q4_1"),
        (["--type", "Q8_0"], "expected --for onnxruntime beside --type Q8_0, found portable"),
    ],
)
def test_numbers_without_products_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["export", "gpt2", "-o", str(tmp_path / "m.onnx"), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_what_has_no_caches_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "mlp", "-o", str(tmp_path / "m.onnx"), "--caches"]) == 1
    assert "expected a language model of a known family beside --caches, found mlp" in capsys.readouterr().err
    assert main(["export", "gpt2", "-o", str(tmp_path / "m.gguf"), "--caches"]) == 1
    assert "without --caches" in capsys.readouterr().err
