"""Language models as GGUF files: read again they are the same weights, whatever numbers they were written in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import CONFIGS, write_checkpoint
from onnx import TensorProto, helper

from halo_tvm.cli import main
from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.exporters._gguf_numbers import FORMATS
from halo_tvm.exporters.gguf import export_gguf
from halo_tvm.importers import import_model
from halo_tvm.importers.gguf.container import read_gguf
from halo_tvm.weight_groups import group_grid, group_pack, unpacked


def tensors_of(model: str) -> list[np.ndarray]:
    """Everything that `main` reads, in its order."""
    imported = import_model(model)
    return [imported.params.materialise(str(name)) for name in imported.mod["main"].attrs["halo.params"]]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_file_is_the_model(tmp_path: Path, family: str) -> None:
    write_checkpoint(tmp_path / "model", family)
    file = tmp_path / "m.gguf"
    assert main(["export", str(tmp_path / "model"), "-o", str(file), "--type", "F32"]) == 0
    source, found = import_model(str(tmp_path / "model")), import_model(str(file))
    assert found.ranges == source.ranges
    for one, other in zip(tensors_of(str(tmp_path / "model")), tensors_of(str(file)), strict=True):
        np.testing.assert_array_equal(other, one if one.shape == other.shape and one.ndim == 1 else _turned(one, other))


def _turned(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """GPT-2 keeps its matrices the other way round than GGUF does."""
    return one if one.shape == other.shape and np.array_equal(one, other) else one.T


@pytest.mark.parametrize(("numbers", "bits", "least"), [("Q8_0", 8, False), ("Q4_0", 4, False), ("Q4_1", 4, True)])
def test_integers_are_ours(tmp_path: Path, numbers: str, bits: int, least: bool) -> None:
    """What the reader makes of a file's blocks is what our own integers and scales mean, and lies on their grid."""
    write_checkpoint(tmp_path / "model", "llama")
    file = read_gguf(export_gguf(str(tmp_path / "model"), tmp_path / "m.gguf", numbers))
    tensor, weight = file.tensors["blk.1.ffn_down.weight"], import_model(str(tmp_path / "model")).params
    x = weight.materialise("model.layers.1.mlp.down_proj.weight")
    how = {"layout": "nk", "group": 32, "nr": 16}
    grid = group_grid(x, **how, bits=bits, least=least)
    packed = group_pack(x, grid, **how, bits=bits)
    found = tensor.kind.floats(tensor.blocks()).reshape(tensor.shape)
    assert tensor.kind.name == numbers
    np.testing.assert_allclose(found, unpacked(packed, *grid, bits=bits, n=len(x)).T, rtol=1e-6, atol=1e-7)
    again = group_grid(found, **how, bits=bits, least=least)
    np.testing.assert_array_equal(group_pack(found, again, **how, bits=bits), packed)
    assert file.tensors["token_embd.weight"].kind.name == "Q8_0" and file.metadata["tokenizer.ggml.model"] == "none"


def test_halves_are_rounded() -> None:
    x = np.random.default_rng(0).standard_normal((3, 32), dtype=np.float32)
    wide = FORMATS["BF16"].data(x).astype(np.uint32) << 16
    assert np.abs(wide.view(np.float32) / x - 1).max() < 2**-8
    np.testing.assert_array_equal(FORMATS["F16"].data(x), x.astype(np.float16))


def write_plain_onnx(path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)


def test_refusals(tmp_path: Path, capsys) -> None:
    write_checkpoint(tmp_path / "bert", "bert")
    with pytest.raises(
        UnsupportedModel,
        match="expected a directory or built-in name of llama, .* to write as GGUF, found bert: export it as",
    ):
        export_gguf(str(tmp_path / "bert"), tmp_path / "m.gguf")
    write_checkpoint(tmp_path / "llama", "llama")
    export_gguf(str(tmp_path / "llama"), tmp_path / "m.gguf")
    config = {**CONFIGS["llama"], "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="expected frequencies of one base to write as GGUF, found scaled ones"):
        export_gguf(str(tmp_path / "llama"), tmp_path / "n.gguf")
    write_plain_onnx(tmp_path / "net.onnx")
    with pytest.raises(UnsupportedModel, match="found net, which is read as a graph: export it as ONNX"):
        export_gguf(str(tmp_path / "net.onnx"), tmp_path / "n.gguf")
    with pytest.raises(UsageError, match="a GGUF file already: take it"):
        export_gguf(str(tmp_path / "m.gguf"), tmp_path / "n.gguf")
    for words, message in (
        (["-o", "m.onnx", "--type", "F16"], "expected --type F32, Q8_0 or Q4_0 beside m.onnx, found F16"),
        (["-o", "m.gguf", "--opset", "20"], "expected a .gguf file without --opset"),
    ):
        assert main(["export", "gpt2", *words[:1], str(tmp_path / words[1]), *words[2:]]) == 1
        assert message in capsys.readouterr().err
