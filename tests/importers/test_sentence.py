"""Directories of sentence-transformers give the vector of a text: pooled states, and what follows them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_checkpoint
from safetensors.numpy import save_file

from halo_tvm.errors import UnsupportedModel, UsageError
from halo_tvm.importers import import_model
from halo_tvm.in_process import compile_in_process
from halo_tvm.interpreter import evaluate

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
OLDER = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
WIDTH = 64
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 0]])


def write_modules(folder: Path, *modules: tuple[str, dict[str, object] | None, dict[str, np.ndarray]]) -> None:
    """modules.json behind the Transformer, each module with its configuration and tensors."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for i, (kind, config, tensors) in enumerate(modules, 1):
        listed.append({"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"})
        (folder / f"{i}_{kind}").mkdir(parents=True, exist_ok=True)
        if config is not None:
            (folder / f"{i}_{kind}" / "config.json").write_text(json.dumps(config))
        if tensors:
            save_file(tensors, folder / f"{i}_{kind}" / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(listed))


def pooled(mode: str, states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """One row of states [sequence, d], of those that the mask leaves."""
    places = np.flatnonzero(mask)
    kept = states[places]
    if mode in ("cls", "lasttoken"):
        return kept[0 if mode == "cls" else -1]
    if mode == "max":
        return kept.max(0)
    if mode == "weightedmean":
        return np.average(kept, axis=0, weights=places - places[0] + 1)
    return kept.sum(0) / (len(kept) if mode == "mean" else np.sqrt(len(kept)))


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.sampled(1)
def test_states_are_pooled_in_every_way(older: bool, tmp_path: Path) -> None:
    """Of rows that are padded in front, behind and between; by files of this release and of older ones."""
    write_checkpoint(tmp_path, "bert")
    config = {f"pooling_mode_{key}": True for key in OLDER} if older else {"pooling_mode": list(MODES)}
    write_modules(tmp_path, ("Pooling", config, {}), ("Dropout", None, {}))
    model = import_model(str(tmp_path))
    assert model.outputs == ("last_hidden_state", "sentence_embedding") and model.name == tmp_path.name
    inputs = {"input_ids": np.random.default_rng(0).integers(0, 100, MASK.shape), "attention_mask": MASK}
    inputs["token_type_ids"] = np.zeros_like(MASK)
    found = evaluate(model, inputs)
    states = found["last_hidden_state"]
    wanted = [np.concatenate([pooled(mode, *row) for mode in MODES]) for row in zip(states, MASK)]
    np.testing.assert_allclose(found["sentence_embedding"], wanted, atol=1e-12)
    if older:
        built = compile_in_process(model, threads=1, level=1)(**inputs)
        np.testing.assert_allclose(built["sentence_embedding"], wanted, atol=1e-5)


@pytest.mark.slow
def test_what_follows_pooling_is_computed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "bert")
    rng = np.random.default_rng(1)
    of_dense, of_norm = {"linear.weight": (24, WIDTH), "linear.bias": (24,)}, {"norm.weight": (24,), "norm.bias": (24,)}
    dense, norm = (
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for shapes in (of_dense, of_norm)
    )
    about = {"in_features": WIDTH, "out_features": 24, "bias": True, "activation_function": "torch.nn.Tanh"}
    more = (("Dense", about, dense), ("LayerNorm", {"dimension": 24}, norm), ("Normalize", None, {}))
    write_modules(tmp_path, ("Pooling", {"pooling_mode_mean_tokens": True}, {}), *more)
    model = import_model(str(tmp_path))
    ids = rng.integers(0, 100, (2, 7))
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    found = evaluate(model, given)
    x = np.tanh(found["last_hidden_state"].mean(1) @ dense["linear.weight"].T + dense["linear.bias"])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * norm["norm.weight"] + norm["norm.bias"]
    wanted = x / np.linalg.norm(x, axis=-1, keepdims=True)
    np.testing.assert_allclose(found["sentence_embedding"], wanted, atol=1e-12)
    built = compile_in_process(model, threads=1, level=3)(input_ids=ids)
    np.testing.assert_allclose(built["sentence_embedding"], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ((("Pooling", {"pooling_mode": "median"}, {}),), "expected pooling by cls, .*, found 'median'"),
        ((("Pooling", {}, {}), ("CNN", {}, {})), "expected modules Pooling, Dense, .* behind the encoder, found CNN"),
        (
            (("Pooling", {}, {}), ("Dense", {"in_features": 9, "out_features": 4}, {})),
            "expected a module Dense of 64 features without residual, found {'in_features': 9",
        ),
        (
            (
                ("Pooling", {}, {}),
                ("Dense", {"in_features": 64, "out_features": 4, "activation_function": "torch.nn.GELU"}, {}),
            ),
            "expected a module Dense with Identity, Tanh, Sigmoid, ReLU, found GELU",
        ),
        (
            (
                ("Pooling", {}, {}),
                ("Dense", {"in_features": 64, "out_features": 4}, {"linear.weight": np.zeros((64, 4), np.float32)}),
            ),
            "expected tensor 'linear.weight' of shape \\[4, 64\\] in 2_Dense, found \\(64, 4\\)",
        ),
    ],
)
def test_other_modules_are_refused(modules: tuple, message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "bert")
    write_modules(tmp_path, *modules)
    with pytest.raises(UnsupportedModel, match=message):
        import_model(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "expected modules.json of sentence-transformers, a list of modules with type and path"),
        (
            json.dumps([{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "../.."}]),
            "expected modules inside of ",
        ),
    ],
)
def test_a_list_of_modules_is_not_trusted(text: str, message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "bert")
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(UnsupportedModel, match=message):
        import_model(str(tmp_path))
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "a.CLIPModel", "path": ""}]))
    assert import_model(str(tmp_path)).outputs == ("last_hidden_state",)


@pytest.mark.slow
def test_encoders_of_transformers_are_pooled(tmp_path: Path) -> None:
    """One whose checkpoint has a head, which is left out; positions behind that of padding are all there are."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.XLMRobertaConfig(vocab_size=67, max_position_embeddings=22, pad_token_id=1, **sizes)
    torch.manual_seed(0)
    saved = transformers.XLMRobertaForMaskedLM(config).eval()
    saved.save_pretrained(tmp_path)
    write_modules(tmp_path, ("Pooling", {"pooling_mode_cls_token": True}, {}), ("Normalize", None, {}))
    model = import_model(str(tmp_path))
    assert model.outputs == ("last_hidden_state", "sentence_embedding") and model.ranges["sequence"][1] == 20
    ids = np.random.default_rng(0).integers(3, 60, (2, 20))
    with torch.no_grad():
        states = saved.roberta(input_ids=torch.tensor(ids)).last_hidden_state.numpy()
    wanted = states[:, 0] / np.linalg.norm(states[:, 0], axis=-1, keepdims=True)
    source = model.engine({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    np.testing.assert_allclose(source["sentence_embedding"], wanted, atol=1e-5)
    program = compile_in_process(model, threads=1, level=1)
    np.testing.assert_allclose(program(input_ids=ids)["sentence_embedding"], wanted, atol=1e-5)
    with pytest.raises((UsageError, ValueError), match="20"):
        program(input_ids=np.zeros((1, 21), np.int64))
