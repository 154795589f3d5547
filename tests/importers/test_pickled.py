"""pytorch_model.bin: the tensors of torch.save, old and new, in one file or several; and that no code of it runs."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import write_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.importers.tensor_files import opened

TENSORS = {
    "float": torch.arange(12.0).reshape(3, 4),
    "half": torch.arange(3).half(),
    "bfloat16": torch.arange(3).bfloat16(),
    "float8": torch.arange(3).float().to(torch.float8_e4m3fn),
    "integers": torch.tensor([[2**40, -1]]),
    "flags": torch.tensor([True, False]),
    "scalar": torch.tensor(7.0),
    "empty": torch.zeros(0, 5),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}
WHOLE = torch.arange(24.0).reshape(4, 6)
VIEWS = {"whole": WHOLE, "turned": WHOLE.T, "part": WHOLE[1:3, ::2], "row": WHOLE[:1].expand(3, 6)}


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_tensors_are_those_that_torch_saved(tmp_path: Path, is_zip: bool) -> None:
    file = tmp_path / "pytorch_model.bin"
    saved = {name: tensor for name, tensor in TENSORS.items() if is_zip or name != "float8"}  # newer than that format
    more = {"step": 3, "history": [1, (2, None)], "nested": {"a": torch.ones(1)}}
    state = OrderedDict({**saved, **VIEWS, **more})
    state._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    torch.save(state, file, _use_new_zipfile_serialization=is_zip)
    found = opened(file)
    assert set(found.shapes) == {*saved, *VIEWS}
    for name, tensor in {**saved, **VIEWS}.items():
        assert found.shapes[name] == tuple(tensor.shape)
        np.testing.assert_array_equal(found.read(name).astype(np.float64), tensor.detach().double().numpy())
    assert found.same("whole") != found.same("turned") != found.same("float")


@pytest.mark.parametrize("shards", [1, 2])
def test_a_directory_of_them_is_a_model(tmp_path: Path, shards: int) -> None:
    """Equal to safetensors; a head that is tied stands in the file as well."""
    write_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    safe = import_model(str(tmp_path)).params
    wanted = {name: safe.materialise(name) for name in safe.sources}
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.again.weight"] = tensors["model.norm.weight"]  # of one storage with what is read
    (tmp_path / "model.safetensors").unlink()
    if shards == 1:
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    else:
        parts = [dict(list(tensors.items())[i::2]) for i in range(2)]
        parts[0] |= {name: tensors[name] for name in ("model.norm.weight", "model.again.weight")}
        names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
        for name, part in zip(names, parts):
            torch.save(part, tmp_path / name)
        where = {tensor: name for name, part in zip(names, parts) for tensor in part}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    model = import_model(str(tmp_path))
    for name, weight in wanted.items():
        np.testing.assert_array_equal(model.params.materialise(name), weight)


@pytest.mark.slow
def test_what_transformers_exports_comes_from_them_too(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    net = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=60, **sizes)).eval()
    net.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    model = import_model(str(tmp_path))
    assert model.source["class"] == "BertForMaskedLM"
    name = "bert.encoder.layer.0.output.dense.weight"
    np.testing.assert_array_equal(model.params.materialise(name), net.state_dict()[name].numpy())


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_nothing_of_a_file_runs(tmp_path: Path, is_zip: bool) -> None:
    file, made = tmp_path / "pytorch_model.bin", tmp_path / "made"
    torch.save({"weight": torch.ones(2), "trap": _Runs(made)}, file, _use_new_zipfile_serialization=is_zip)
    assert set(opened(file).shapes) == {"weight"}
    assert not made.exists()
    with pytest.raises(pickle.UnpicklingError):  # and the trap is one
        torch.load(file, weights_only=True)
    torch.load(file, weights_only=False)
    assert made.exists()


def test_broken_files_are_refused(tmp_path: Path) -> None:
    good, file = tmp_path / "good.bin", tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(40, 3)}, good)
    with zipfile.ZipFile(good) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    (pickled,) = (name for name in entries if name.endswith("data.pkl"))
    (stored,) = (name for name in entries if name.endswith("data/0"))
    (order,) = (name for name in entries if name.endswith("byteorder"))
    for changes, how, message in (
        ({}, zipfile.ZIP_DEFLATED, "compressed entries"),
        ({stored: entries[stored][:-4]}, zipfile.ZIP_STORED, "'a' in a storage that is not there, or smaller"),
        ({order: b"big"}, zipfile.ZIP_STORED, "whose first byte is the highest"),
        ({pickled: pickle.dumps([1, 2])}, zipfile.ZIP_STORED, "no mapping from names to tensors"),
        ({pickled: pickle.dumps({"a": 1 << 4000})}, zipfile.ZIP_STORED, "an integer of 4001 bits"),
        ({pickled: entries[pickled][:20]}, zipfile.ZIP_STORED, "found "),
    ):
        with zipfile.ZipFile(file, "w", how) as archive:
            for name, data in {**entries, **changes}.items():
                archive.writestr(name, data)
        with pytest.raises(UnsupportedModel, match=message):
            opened(file)
    whole = file.read_bytes()
    at = whole.rindex(b"PK\x01\x02", 0, whole.rindex(b"data.pkl")) + 24  # its size, uncompressed, in the directory
    for size, message in ((3, "found "), (1 << 20, "found EOFError")):
        file.write_bytes(whole[: at - 4] + size.to_bytes(4, "little") * 2 + whole[at + 4 :])
        with pytest.raises(UnsupportedModel, match=message):
            opened(file)
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(UnsupportedModel, match="expected a state dict as torch.save writes it"):
        opened(file)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_are_tensors_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, is_zip: bool, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("mutated") / "pytorch_model.bin"
    torch.save({**VIEWS, "parameter": TENSORS["parameter"]}, file, _use_new_zipfile_serialization=is_zip)
    changed = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(changed[: data.draw(st.integers(0, len(changed)) | st.just(len(changed)))])
    try:
        found = opened(file)
        for name, shape in found.shapes.items():
            assert found.read(name).shape == shape
    except UnsupportedModel:
        pass
