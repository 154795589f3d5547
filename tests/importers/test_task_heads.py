"""Directories of Hugging Face give what their `architectures` name: heads are never lost in silence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.in_process import compile_in_process

SIZES = {
    "vocab_size": 67,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
HEADS = {
    "BertForSequenceClassification": {},
    "BertForTokenClassification": {},
    "RobertaForMaskedLM": {},
    "DistilBertForQuestionAnswering": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 48},
    "ElectraForSequenceClassification": {"embedding_size": 32},
    "DebertaV2ForSequenceClassification": {},
    "Qwen3ForSequenceClassification": {"num_key_value_heads": 1, "head_dim": 16},
    "JambaForSequenceClassification": {
        "num_hidden_layers": 2,
        "mamba_d_state": 4,
        "num_key_value_heads": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
    },
}


def saved(name: str, directory: Path) -> object:
    """A tiny model of the class `name` with seeded weights, saved in `directory`."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**{**SIZES, **HEADS[name]})).eval()
    model.save_pretrained(directory)
    return model


def check(model: object, directory: Path) -> None:
    """Both engines agree on other sizes than those of the export."""
    program = compile_in_process(import_model(str(directory)), threads=1, level=1)
    ids = np.random.default_rng(0).integers(3, 60, (3, 9))
    found = program(input_ids=ids)
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor(ids))
    names = [name for name in ("logits", "start_logits", "end_logits") if name in wanted]
    assert names and set(names) <= set(found)
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name].numpy(), rtol=1e-4, atol=1e-4, err_msg=name)


def snapshot_of(made: Path, hub: Path) -> Path:
    """The files of `made` as the hub's cache keeps them: links into `blobs`, which the confined process may read."""
    snapshot, blobs = hub / "snapshots" / "0a1b", hub / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(made.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    return snapshot


@pytest.mark.slow
def test_heads_that_are_not_there_are_refused(tmp_path: Path) -> None:
    saved("BertForSequenceClassification", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name, message in (
        ("BertForTokenRanking", "expected a class of transformers .* found BertForTokenRanking"),
        ("BertForMaskedLM", "expected the weights of BertForMaskedLM, .* found no cls.predictions"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
        with pytest.raises(UnsupportedModel, match=message):
            import_model(str(tmp_path))


def test_a_recurrence_by_doublings_is_that_of_its_steps() -> None:
    """Of lengths on either side of a power of two, along an axis that is not the last."""
    from halo_tvm.importers.torch_export._scans import recurrence

    a, b = torch.randn(2, 3, 37, 4, dtype=torch.float64).tanh(), torch.randn(2, 3, 37, 4, dtype=torch.float64)
    for length in (1, 2, 31, 32, 33, 37):
        state, wanted = torch.zeros(2, 3, 4, dtype=torch.float64), []
        for step in range(length):
            state = a[:, :, step] * state + b[:, :, step]
            wanted.append(state)
        found = recurrence(a[:, :, :length], b[:, :, :length], 2, 37)[1]
        torch.testing.assert_close(found, torch.stack(wanted, 2))


# One of encoders and one of decoders: each is an export of half a minute.
IN_CI = ("DebertaV2ForSequenceClassification", "Qwen3ForSequenceClassification")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n in IN_CI else pytest.param(n, marks=pytest.mark.sweep) for n in HEADS])
def test_heads_equal_transformers(name: str, tmp_path: Path) -> None:
    """Of encoders from a snapshot of the hub's cache."""
    made = tmp_path / "made"
    model = saved(name, made)
    check(model, made if name.startswith("Qwen") else snapshot_of(made, tmp_path / "hub"))
