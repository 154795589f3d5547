"""The language models in models that see or hear: their logits behind a text are those of the whole model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from random_models import written
from safetensors.numpy import load_file, save_file

from halo_tvm import CompileConfig
from halo_tvm.compilation import Compilation
from halo_tvm.entry_points import functions_of
from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate
from halo_tvm.models.inside import SIZES, TEXT_TYPES, USUAL, language_model_of
from halo_tvm.phases import lower

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import _small_models

IDS = np.random.default_rng(0).integers(3, 120, (2, 11))
# One of each place that tensors have, then one of each definition that has no test of its own.
ALWAYS = {"llava": "Llava", "qwen2_vl": "Qwen2VL"}
MORE = {
    "gemma3": "Gemma3",
    "gemma4_unified": "Gemma4Unified",
    "glm4v": "Glm4v",
    "glm4v_moe": "Glm4vMoe",
    "glm_ocr": "GlmOcr",
    "granite_docling": "GraniteDocling",
    "idefics3": "Idefics3",
    "paddleocr_vl": "PaddleOCRVL",
    "qwen3_5": "Qwen3_5",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
}


def saved(directory: Path, name: str) -> np.ndarray:
    """A small model of the class, written to `directory`; its logits for a text."""
    model = _small_models.small_model(f"{name}ForConditionalGeneration")
    ids = torch.from_numpy(IDS)
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.numpy()
    model.save_pretrained(directory)
    return wanted


def assert_near(directory: Path, wanted: np.ndarray) -> None:
    found = evaluate(import_model(str(directory)), {"input_ids": IDS})["logits"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", [*ALWAYS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE)])
def test_a_text_alone(tmp_path: Path, kind: str) -> None:
    wanted = saved(tmp_path, (ALWAYS | MORE)[kind])
    assert_near(tmp_path, wanted)
    assert import_model(str(tmp_path)).source["language_model"] == TEXT_TYPES[kind]


@pytest.mark.parametrize(
    ("layers", "rest", "head"),
    [
        ("language_model.model.", "language_model.model.", "language_model.lm_head."),  # LLaVA's first releases
        ("model.", "model.", "lm_head."),  # Qwen2-VL's
        ("thinker.model.", "thinker.model.", "thinker.lm_head."),
        ("model.text_model.", "model.text_model.", "lm_head."),
    ],
)
def test_places_of_tensors(tmp_path: Path, layers: str, rest: str, head: str) -> None:
    """A config of Qwen2-VL's first releases, which has the words of the language model beside the others."""
    wanted = saved(tmp_path, "Qwen2VL")
    file = tmp_path / "model.safetensors"
    text = {n.removeprefix("model."): t for n, t in load_file(file).items() if "visual" not in n}
    text = {n.removeprefix("language_model."): t for n, t in text.items()}
    put = {(head if n.startswith("lm_head.") else rest) + n.removeprefix("lm_head."): t for n, t in text.items()}
    save_file(put, file, metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    inner = config.pop("text_config")
    inner.pop("model_type")
    (tmp_path / "config.json").write_text(json.dumps({**inner, **config}))
    assert_near(tmp_path, wanted)


@pytest.mark.slow
def test_the_language_model_of_gemma_3n(tmp_path: Path) -> None:
    """Whose pictures are seen by a network of timm's: its own tensors as they lie beside that, and one of it."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16, "vocab_size": 131}
    sizes |= {"num_kv_shared_layers": 1, "laurel_rank": 8, "hidden_size_per_layer_input": 8, "intermediate_size": 96}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    sizes |= {"vocab_size_per_layer_input": 120, "layer_types": kinds, "max_position_embeddings": 64}
    wanted = written(tmp_path, "gemma3n_text", sizes, IDS)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.replace("model.", "model.language_model."): tensor for name, tensor in tensors.items()}
    save_file({**tensors, "model.vision_tower.timm_model.stem": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    around = {"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"], "text_config": config}
    (tmp_path / "config.json").write_text(json.dumps(around))
    assert_near(tmp_path, wanted)
    model, how = import_model(str(tmp_path)), Compilation.of(CompileConfig("model"))
    for function in functions_of(model, ("prefill",), gpu=False, caches=how.caches).values():
        lower(function, how)  # tokens of no fixed number, of which the last one's streams are wanted


def test_a_tensor_of_its_layers_that_is_not_read_is_unknown(tmp_path: Path) -> None:
    saved(tmp_path, "Llava")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(n for n in tensors if n.endswith("layers.1.self_attn.q_proj.weight"))
    save_file(tensors | {name.replace("weight", "bias"): np.ones(64, np.float32)}, file, metadata={"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"1 unknown \(.*layers.1.self_attn.q_proj.bias\)"):
        import_model(str(tmp_path))


def test_the_bare_model_is_exported_whole() -> None:
    """What a config names without a head is the model that sees, as transformers has it."""
    assert language_model_of({"model_type": "llava", "architectures": ["LlavaModel"], "text_config": {}}) is None
    assert language_model_of({"model_type": {}, "text_config": {}}) is None
    assert language_model_of({"model_type": "clip", "text_config": {"model_type": "llama"}}) is None


def test_a_config_inside_that_is_none_is_refused() -> None:
    for broken in ({"text_config": 5}, {"thinker_config": "x"}):
        with pytest.raises(UnsupportedModel, match="expected text_config as an object in config.json, found"):
            language_model_of({"model_type": "qwen2_5_omni", **broken})


def test_what_a_config_inside_leaves_out() -> None:
    for kind, sizes in USUAL.items():
        config = transformers.CONFIG_MAPPING[kind]()
        usual = [getattr(config, name) for name in SIZES]
        # Gemma 3n has one width of every layer, all alike.
        assert sizes == tuple(one for (one,) in ({*x} if isinstance(x, list) else {x} for x in usual)), kind
    words = language_model_of({"model_type": "llava", "text_config": {"vocab_size": 32064}, "eos_token_id": 2})
    assert words is not None
    assert (words["model_type"], words["hidden_size"], words["vocab_size"]) == ("llama", 4096, 32064)
    assert words["eos_token_id"] == 2


def test_every_type_is_one_of_transformers() -> None:
    for kind, text in TEXT_TYPES.items():
        assert {kind, text} <= set(transformers.CONFIG_MAPPING), kind
