"""Built-in definitions: sizes, weights from directories, and the same numbers as torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import CONFIGS, write_checkpoint
from safetensors.numpy import load_file, save_file

from halo_tvm.errors import MissingPackage, UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.importers.tensor_files import weight_files
from halo_tvm.interpreter import evaluate
from halo_tvm.models import FAMILIES, PRESETS
from halo_tvm.models._t5 import T5Config
from halo_tvm.models.builder import RandomWeights

IDS = np.random.default_rng(0).integers(0, 131, (2, 9))


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("gpt2", 124.4),
        ("gpt2-medium", 354.8),
        ("gpt2-large", 774.0),
        ("gpt2-xl", 1557.6),
        ("bert-base", 108.9),
        ("bert-large", 334.1),
        ("mlp", 3.1),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, millions: float) -> None:
    model = import_model(name)
    total = sum(np.prod(s.shape) for s in model.params.sources.values())
    assert round(total / 1e6, 1) == millions


def test_every_preset_names_its_source() -> None:
    for name in PRESETS:
        model = import_model(name, seed=5)
        assert model.source["kind"] == "builtin" and model.source["name"] == name and model.source["seed"] == 5
        assert set(model.typical) == set(model.ranges)


def test_seeded_weights_repeat_and_differ_by_seed() -> None:
    one, again, other = (import_model("mlp", seed=s).params.materialise("layers.1.weight") for s in (0, 0, 1))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_random_attention_is_not_flat() -> None:
    """Scores of the random GPT-2 spread: the largest weight of a row is far over the mean."""
    model = import_model("gpt2")
    weight = model.params.materialise("h.0.attn.c_attn.weight")
    x = np.random.default_rng(0).standard_normal((64, 768))
    q, k = x @ weight[:, :64], x @ weight[:, 768:832]
    scores = q @ k.T / 8
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert np.median(p.max(1)) > 5 / 64


@pytest.mark.parametrize(("kind", "prefix"), [("gpt2", ""), ("gpt2", "transformer."), ("bert", ""), ("bert", "bert.")])
def test_directory_gives_the_same_model_under_either_prefix(tmp_path: Path, kind: str, prefix: str) -> None:
    plain = import_model(str(write_checkpoint(tmp_path / "a", kind)))
    prefixed = import_model(str(write_checkpoint(tmp_path / "b", kind, prefix=prefix)))
    assert all(
        np.array_equal(plain.params.materialise(n), prefixed.params.materialise(n)) for n in plain.params.sources
    )


# ------------------------------------------------------------------ against torch


def torch_llama(model, ids: np.ndarray) -> np.ndarray:
    """Llama in torch, double precision: rotary halves, grouped heads, gated feed-forward."""
    import torch

    w = {n: torch.from_numpy(s.load()).double() for n, s in model.params.sources.items()}
    c, f = CONFIGS["llama"], torch.nn.functional
    d = c["hidden_size"] // c["num_attention_heads"]
    x = w["model.embed_tokens.weight"][torch.from_numpy(ids)]
    b, s, _ = x.shape
    inverse = 1.0 / c["rope_theta"] ** (torch.arange(0, d, 2).double() / d)
    angle = torch.outer(torch.arange(s).double(), inverse).repeat(1, 2)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]

    def norm(y, name):
        return y * (y.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]).rsqrt() * w[f"{name}.weight"]

    def turn(y):
        first, second = y.chunk(2, -1)
        return y * cos + torch.cat([-second, first], -1) * sin

    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        y = norm(x, f"{p}.input_layernorm")
        q, k, v = ((y @ w[f"{p}.self_attn.{n}_proj.weight"].T).view(b, s, -1, d) for n in "qkv")
        q, k = turn(q), turn(k)
        k, v = (t.repeat_interleave(2, dim=2) for t in (k, v))
        o = f.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + o.transpose(1, 2).reshape(b, s, -1) @ w[f"{p}.self_attn.o_proj.weight"].T
        y = norm(x, f"{p}.post_attention_layernorm")
        gate = f.silu(y @ w[f"{p}.mlp.gate_proj.weight"].T) * (y @ w[f"{p}.mlp.up_proj.weight"].T)
        x = x + gate @ w[f"{p}.mlp.down_proj.weight"].T
    return (norm(x, "model.norm") @ w["model.embed_tokens.weight"].T).numpy()


def test_llama_equals_torch(tmp_path: Path) -> None:
    model = import_model(str(write_checkpoint(tmp_path, "llama")))
    # The rotary tables are rounded to float32 once: 6e-8 of a unit vector, through two layers.
    np.testing.assert_allclose(evaluate(model, {"input_ids": IDS})["logits"], torch_llama(model, IDS), atol=1e-6)


def test_a_type_has_one_definition_or_parts_of_which_one_is_the_default() -> None:
    for kind in {kind for family in FAMILIES.values() for kind in family.huggingface_types}:
        families = [f for f in FAMILIES.values() if kind in f.huggingface_types]
        assert len(families) == 1 or sum(f.default_part for f in families) == 1, kind
        assert len({f.part for f in families}) == len(families)


def test_heads_of_an_odd_size_are_refused_where_positions_turn_their_halves() -> None:
    config = T5Config(layers=1, decoder_layers=1, hidden=30, heads=2, head_dim=15, feed_forward=32, vocabulary=19)
    assert FAMILIES["t5"].build("t5", config, RandomWeights(0), {}).params.sources  # llama: among the refusals below


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "found no config.json"),
        (lambda d: (d / "config.json").write_text("{"), "to be JSON"),
        (lambda d: (d / "config.json").write_text("[]"), "to hold a JSON object, found list"),
        (lambda d: (d / "config.json").write_text('{"model_type": "gpt2"}'), "expected a complete gpt2 config"),
        (lambda d: (d / "model.safetensors").unlink(), "expected safetensors weights"),
        (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 64), "expected a readable safetensors file"),
        (
            lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-100]),
            "expected a readable safetensors file",
        ),
        (
            lambda d: (d / "config.json").write_text(json.dumps({**CONFIGS["gpt2"], "n_layer": 3})),
            r"found 12 missing \(h.2.attn.c_attn.bias, .*and none unknown among",
        ),
        (
            lambda d: (d / "config.json").write_text(json.dumps({**CONFIGS["gpt2"], "vocab_size": 7})),
            r"of shape \[7, 64\], found \[131, 64\]",
        ),
        (
            lambda d: (
                (d / "model.safetensors")
                .rename(d / "model.safetensors.index.json")
                .write_text('{"weight_map": {"a": "../secret.safetensors"}}')
            ),
            "expected plain file names in model.safetensors.index.json, found '../secret.safetensors'",
        ),
    ],
)
def test_a_broken_directory_is_refused_in_one_sentence(tmp_path: Path, break_it, message: str) -> None:
    directory = write_checkpoint(tmp_path / "model", "gpt2")
    break_it(directory)
    with pytest.raises(UnsupportedModel, match=message) as error:
        import_model(str(directory))
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


def _changed(kind: str, **changes: object) -> str:
    return json.dumps({**CONFIGS[kind], **changes})


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gpt2", {"n_head": 0}, "heads from 1 to"),
        ("gpt2", {"n_head": -4}, "heads from 1 to"),
        ("gpt2", {"n_head": 3}, "hidden as a multiple of heads"),
        ("gpt2", {"n_embd": float("inf")}, "found OverflowError"),
        ("gpt2", {"n_embd": float("nan")}, "found ValueError"),
        ("gpt2", {"n_embd": -64}, "hidden from 1 to"),
        ("gpt2", {"n_embd": 10**30}, "hidden from 1 to"),
        ("gpt2", {"n_layer": 0}, "layers from 1 to"),
        ("gpt2", {"n_layer": 10**9}, "layers from 1 to"),
        ("gpt2", {"n_positions": 10**12}, "positions from 1 to"),
        ("gpt2", {"layer_norm_epsilon": float("nan")}, "eps as a finite number"),
        ("gpt2", {"n_inner": [1]}, "found TypeError"),
        ("bert", {"num_attention_heads": 0}, "heads from 1 to"),
        ("bert", {"type_vocab_size": -1}, "segments from 1 to"),
        ("llama", {"num_attention_heads": 0}, "found ZeroDivisionError|heads from 1 to"),
        ("llama", {"num_key_value_heads": 3}, "heads as a multiple of kv_heads"),
        ("llama", {"head_dim": 10**9}, "head_dim from 1 to"),
        ("llama", {"head_dim": 15}, "head_dim as a multiple of 2"),
        ("llama", {"rope_theta": float("inf")}, "theta as a finite number"),
        (
            "llama",
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8,
                    "low_freq_factor": 4,
                    "high_freq_factor": 4,
                    "original_max_position_embeddings": 64,
                }
            },
            "is not below",
        ),
    ],
)
def test_a_hostile_config_is_refused_in_one_sentence(
    tmp_path: Path, kind: str, changes: dict[str, object], message: str
) -> None:
    directory = write_checkpoint(tmp_path / "model", kind)
    (directory / "config.json").write_text(_changed(kind, **changes).replace("Infinity", "1e400"))
    with pytest.raises(UnsupportedModel, match=message) as error:
        import_model(str(directory))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("weight_map", [None, [], "a", {"a": 1}, {"a": ["model.safetensors"]}, {"a": None}], ids=str)
def test_an_index_of_other_types_is_refused(tmp_path: Path, weight_map: object) -> None:
    directory = write_checkpoint(tmp_path / "model", "gpt2")
    (directory / "model.safetensors").rename(directory / "model-00001-of-00001.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UnsupportedModel, match="expected plain file names"):
        import_model(str(directory))


def test_of_several_files_of_weights_the_one_that_transformers_reads_is_read(tmp_path: Path) -> None:
    """One file, then its index, then the pickled ones; what is called otherwise only where nothing else lies."""
    others = ("model_ema.safetensors", "consolidated.safetensors", "model-00001-of-00002.safetensors")
    one, index, pickled = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
    for name in (one, pickled, *others):
        (tmp_path / name).touch()
    (tmp_path / index).write_text(json.dumps({"weight_map": {"a": others[2]}}))
    found = []
    for gone in (None, one, index, pickled):
        (tmp_path / (gone or "nothing")).unlink(missing_ok=True)
        found.append([file.name for file in weight_files(tmp_path)])
    assert found == [[one], [others[2]], [pickled], sorted(others)]


def test_the_hash_sees_every_byte(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "gpt2")
    before = import_model(str(directory)).source["sha256"]
    weights = directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    middle = len(data) // 2
    data[middle] ^= 1
    weights.write_bytes(bytes(data))
    after = import_model(str(directory)).source["sha256"]
    config = directory / "config.json"
    config.write_text(_changed("gpt2", layer_norm_epsilon=1e-6))
    assert len({before, after, import_model(str(directory)).source["sha256"]}) == 3


@pytest.mark.parametrize(("kind", "table"), [("llama", "model.embed_tokens.weight"), ("gpt2", "wte.weight")])
def test_a_tied_table_may_be_stored_under_the_heads_name(tmp_path: Path, kind: str, table: str) -> None:
    directory = write_checkpoint(tmp_path / kind, kind)
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop(table)
    save_file(tensors, directory / "model.safetensors")
    model = import_model(str(directory))
    np.testing.assert_array_equal(model.params.materialise(table), tensors["lm_head.weight"])


def test_a_head_that_differs_from_the_table_is_not_tied(tmp_path: Path) -> None:
    """A config may say that both are one, where another head was trained."""
    directory = write_checkpoint(tmp_path / "llama", "llama", tie_word_embeddings=True)
    path, config = directory / "model.safetensors", directory / "config.json"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, path)
    tied = import_model(str(directory))
    assert "lm_head.weight" not in tied.params.sources
    tensors["lm_head.weight"] += np.float32(1)
    save_file(tensors, path)
    found = evaluate(import_model(str(directory)), {"input_ids": IDS})["logits"]
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": False}))
    np.testing.assert_array_equal(found, evaluate(import_model(str(directory)), {"input_ids": IDS})["logits"])
    assert not np.array_equal(found, evaluate(tied, {"input_ids": IDS})["logits"])


def test_a_head_is_no_table_where_the_two_are_not_tied(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "llama", "llama", tie_word_embeddings=False)
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"found 1 missing \(model.embed_tokens.weight\) and none unknown"):
        import_model(str(directory))


def test_an_architecture_without_a_definition_needs_transformers(tmp_path: Path, monkeypatch) -> None:
    directory = write_checkpoint(tmp_path / "model", "gpt2")
    (directory / "config.json").write_text('{"model_type": "rwkv"}')
    monkeypatch.setattr("halo_tvm.importers.huggingface.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="model_type 'rwkv', which has no built-in definition"):
        import_model(str(directory))
