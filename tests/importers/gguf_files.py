"""Small GGUF files of tiny models, written by the package gguf with the names and changes of llama.cpp's converters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from halo_tvm.models import FAMILIES, completed
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.decoder import DecoderConfig

_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 131,
    "max_position_embeddings": 64,
    "intermediate_size": 96,
}
_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 131, "n_positions": 64}
_OLD = {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 131}
_PLAIN = {**_SIZES, "num_key_value_heads": 4}
_EXPERTS = {**_SIZES, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_GPT_OSS_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_SECTIONS = {"rope.dimension_sections": [3, 3, 2, 0]}  # of the three positions of an image
_FOUR = {"expert_count": 4, "expert_used_count": 2}

# architecture, a variant behind a colon -> config.json of the same model, and metadata that no word of `_METADATA`
# stands for.
MODELS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "llama": ({"model_type": "llama", "tie_word_embeddings": True, **_SIZES}, {}),
    "qwen2": ({"model_type": "qwen2", **_SIZES}, {}),
    "qwen3": (
        {"model_type": "qwen3", **_SIZES, "head_dim": 32},
        {"attention.key_length": 32, "attention.value_length": 32},
    ),
    "smollm3": ({"model_type": "smollm3", "tie_word_embeddings": True, "rope_theta": 5e5, **_SIZES}, {}),
    "granite": (
        {"model_type": "granite", "attention_multiplier": 0.5, "embedding_multiplier": 4.0, **_SIZES}
        | {"residual_multiplier": 0.25, "logits_scaling": 8.0, "tie_word_embeddings": True},
        {"attention.scale": 0.5, "embedding_scale": 4.0, "residual_scale": 0.25, "logit_scale": 8.0},
    ),
    "gemma": ({"model_type": "gemma", **_SIZES}, {"attention.key_length": 16, "attention.value_length": 16}),
    "gemma2": (
        {"model_type": "gemma2", "sliding_window": 8, "query_pre_attn_scalar": 16, **_SIZES},
        {"attention.sliding_window": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        {"model_type": "gemma3_text", "sliding_window": 8, "query_pre_attn_scalar": 16, **_SIZES, "rope_theta": 1e6},
        {"attention.sliding_window": 8},
    ),
    "phi2": ({"model_type": "phi", "partial_rotary_factor": 0.5, **_PLAIN}, {"rope.dimension_count": 8}),
    "phi3": ({"model_type": "phi3", "sliding_window": 8, **_SIZES}, {"attention.sliding_window": 8}),
    "olmo2": ({"model_type": "olmo2", **_SIZES}, {}),
    "olmo2: windows": (
        {"model_type": "olmo3", "sliding_window": 8, **_SIZES, "rope_theta": 5e5}
        | {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
        | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, True, True, False]}
        | {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16},
    ),
    "stablelm": (
        {"model_type": "stablelm", "partial_rotary_factor": 0.25, "use_qkv_bias": True, **_SIZES},
        {"rope.dimension_count": 4, "use_parallel_residual": False},
    ),
    "starcoder2": ({"model_type": "starcoder2", **_SIZES}, {}),
    "command-r": ({"model_type": "cohere", "logit_scale": 0.0625, **_SIZES}, {"logit_scale": 0.0625}),
    "glm4": ({"model_type": "glm4", "attention_bias": True, **_SIZES}, {"rope.dimension_count": 8}),
    "gptneox": (
        {"model_type": "gpt_neox", **_PLAIN, "use_parallel_residual": True},
        {"rope.dimension_count": 4, "use_parallel_residual": True},
    ),
    "olmoe": ({"model_type": "olmoe", "num_experts": 4, **_EXPERTS}, _FOUR),
    "qwen2moe": (
        {"model_type": "qwen2_moe", "num_experts": 4, **_EXPERTS, "shared_expert_intermediate_size": 48},
        {**_FOUR, "expert_feed_forward_length": 40, "expert_shared_feed_forward_length": 48},
    ),
    "qwen3moe": (
        {"model_type": "qwen3_moe", "num_experts": 4, "norm_topk_prob": True, **_EXPERTS},
        {**_FOUR, "expert_feed_forward_length": 40},
    ),
    "dots1": (
        {"model_type": "dots1", "n_routed_experts": 4, "n_shared_experts": 2, "routed_scaling_factor": 1.5, **_EXPERTS}
        | {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "norm_topk_prob": True},
        {**_FOUR, "expert_feed_forward_length": 40, "expert_shared_count": 2, "expert_weights_scale": 1.5}
        | {"leading_dense_block_count": 1, "expert_group_count": 2, "expert_group_used_count": 1},
    ),
    "glm4moe": (
        {"model_type": "glm4_moe", "n_routed_experts": 4, "n_shared_experts": 1, "attention_bias": True, **_EXPERTS}
        | {"first_k_dense_replace": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5},
        {**_FOUR, "expert_feed_forward_length": 40, "expert_shared_count": 1, "leading_dense_block_count": 1}
        | {"rope.dimension_count": 8, "expert_weights_norm": True, "expert_gating_func": 2},
    ),
    "qwen2vl": ({"model_type": "qwen2_vl_text", **_SIZES}, _SECTIONS),
    "qwen3vl": ({"model_type": "qwen3_vl_text", **_SIZES}, _SECTIONS),
    "qwen3vlmoe": (
        {"model_type": "qwen3_vl_moe_text", "num_experts": 4, "norm_topk_prob": True, **_EXPERTS},
        {**_FOUR, "expert_feed_forward_length": 40, "n_deepstack_layers": 0} | _SECTIONS,
    ),
    "arcee": ({"model_type": "arcee", "rms_norm_eps": 1e-5, "hidden_act": "relu2", **_SIZES}, {}),
    "olmo": ({"model_type": "olmo", "rms_norm_eps": 1e-5, **_PLAIN}, {}),
    "ernie4_5": ({"model_type": "ernie4_5", "rms_norm_eps": 1e-5, "rope_theta": 5e5, **_SIZES}, {}),
    "paddleocr": ({"model_type": "paddleocr_vl_text", "rms_norm_eps": 1e-5, "rope_theta": 5e5, **_SIZES}, _SECTIONS),
    "cohere2": (
        {"model_type": "cohere2", "logit_scale": 0.0625, "sliding_window": 8, **_SIZES, "num_hidden_layers": 4},
        {"logit_scale": 0.0625, "attention.sliding_window": 8},
    ),
    "seed_oss": ({"model_type": "seed_oss", **_SIZES}, {}),
    "hunyuan-dense": ({"model_type": "hunyuan_v1_dense", "rms_norm_eps": 1e-5, **_SIZES}, {}),
    "exaone": ({"model_type": "exaone", "layer_norm_epsilon": 1e-5, "rope_theta": 5e5, **_SIZES}, {}),
    "exaone4": (
        {
            "model_type": "exaone4",
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            **_SIZES,
        },
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False]},
    ),
    "nemotron": (
        {"model_type": "nemotron", "partial_rotary_factor": 0.5, "hidden_act": "relu2", **_SIZES},
        {"rope.dimension_count": 8},
    ),
    "gpt-oss": (
        {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, **_SIZES}
        | {"rope_scaling": {**_GPT_OSS_YARN, "truncate": False}}
        | {"rope_theta": 1e4},
        {**_FOUR, "attention.sliding_window": 8, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
        | {"rope.scaling.original_context_length": 16, "expert_feed_forward_length": 96},
    ),
    "lfm2": (
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, **_SIZES}
        | {"rope_theta": 1e6},
        {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3, "vocab_size": 131},
    ),
    "lfm2moe": (
        {"model_type": "lfm2_moe", "layer_types": ["conv", "full_attention"], "num_experts": 4, **_EXPERTS}
        | {"num_dense_layers": 1, "rope_theta": 1e6},
        {**_FOUR, "attention.head_count_kv": [0, 2], "shortconv.l_cache": 3, "leading_dense_block_count": 1}
        | {"expert_feed_forward_length": 40, "expert_gating_func": 2},
    ),
    "gpt2": ({"model_type": "gpt2", **_GPT}, {}),
    "bloom": ({"model_type": "bloom", **_OLD, "seq_length": 64}, {}),
    "falcon": ({"model_type": "falcon", **_OLD, "max_position_embeddings": 64}, {"attention.head_count_kv": 1}),
}
_METADATA = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "context_length": ("max_position_embeddings", "n_positions", "seq_length"),
}
# Whose converters order channels that turn together as neighbours.
_LIKE_LLAMA = ("arcee", "llama", "granite", "olmo", "smollm3")


def write_model(
    folder: Path, architecture: str, more: Mapping[str, object] | None = None
) -> tuple[Path, DecoderConfig]:
    """The file of the tiny model of `architecture` with float32 weights, and the configuration of its config.json.

    `more` is further metadata, which may replace that of the model.
    """
    tensors = _of_all_experts(huggingface_tensors(architecture))
    config, own = MODELS[architecture]
    config, architecture = completed(config), architecture.partition(":")[0]
    family = next(f for f in FAMILIES.values() if config["model_type"] in f.huggingface_types)
    parsed = family.from_huggingface(config)
    n = next(config[w] for w in ("hidden_size", "n_embd") if w in config)
    values: dict[str, object] = {
        f"{architecture}.{key}": next(config[w] for w in words if w in config)
        for key, words in _METADATA.items()
        if any(w in config for w in words)
    }
    values.setdefault(f"{architecture}.feed_forward_length", 4 * n)
    values[f"{architecture}.rope.freq_base"] = float(config.get("rope_theta", 10000.0))
    rms = parsed.norm == "rms"
    values[f"{architecture}.attention.layer_norm{'_rms' if rms else ''}_epsilon"] = parsed.eps
    values |= {f"{architecture}.{key}": value for key, value in own.items()} | dict(more or {})
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[_enum(architecture)], parsed.layers)
    file = folder / f"{architecture}.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in values.items():
        add(writer, key, value)
    for name, array in tensors.items():
        known = (
            names.get_name(n, try_suffixes=(".weight", ".bias")) for n in (name, name.removeprefix("transformer."))
        )
        stored = next(filter(None, known), None)
        assert stored is not None, f"{name} of {architecture} has no name in GGUF"
        writer.add_tensor(stored, np.ascontiguousarray(_converted(architecture, parsed, name, array)))
    finish(writer)
    return file, parsed


def _of_all_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts as the converter has them: those of a layer are one tensor; and a row alone is a vector."""
    found: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        if name.endswith("e_score_correction_bias"):
            found[name.replace("_bias", ".bias")] = array
        elif name.endswith("feed_forward.expert_bias"):
            found[f"{name}.bias"] = array
        elif ".experts.0." in name:
            each = (tensors[name.replace(".experts.0.", f".experts.{e}.")] for e in range(4))
            stem = name.replace(".experts.0.", ".experts.")
            found[stem.removeprefix("model.") if "experts.w" in stem else stem] = np.stack(list(each))
        elif "experts.gate_up_proj" in name:  # gpt-oss: gates and projections up take turns
            for part, begin in (("gate_proj", 0), ("up_proj", 1)):
                turned = array[..., begin::2]
                end = ".bias" if name.endswith("_bias") else ".weight"
                stem = name.removesuffix("_bias").replace("gate_up_proj", part)
                found[stem + end] = turned if end == ".bias" else turned.swapaxes(1, 2)
        elif name.endswith(("experts.down_proj", "experts.down_proj_bias")):
            end = ".bias" if name.endswith("_bias") else ".weight"
            found[name.removesuffix("_bias") + end] = array if end == ".bias" else array.swapaxes(1, 2)
        elif name.endswith("sinks"):
            found[f"{name}.weight"] = array
        elif ".experts." not in name:
            found[name] = array[0] if name.endswith("shared_expert_gate.weight") else array
    return found


def _enum(architecture: str) -> str:
    return next(a.name for a, word in gguf.MODEL_ARCH_NAMES.items() if word == architecture)


def huggingface_tensors(architecture: str) -> dict[str, np.ndarray]:
    """The seeded tensors of the model under the names of its Hugging Face checkpoint."""
    config, _ = MODELS[architecture]
    family = next(f for f in FAMILIES.values() if config["model_type"] in f.huggingface_types)
    model = family.build("tiny", family.from_huggingface(completed(config)), RandomWeights(3), {})
    made = ("rotary.", "zeros.", "ones.")
    return {n: s.load() for n, s in model.params.sources.items() if not n.startswith(made)}


def _converted(architecture: str, c: DecoderConfig, name: str, x: np.ndarray) -> np.ndarray:
    """What llama.cpp's converter makes of a tensor."""
    if architecture == "gpt2" and x.ndim == 2 and name.startswith("h."):
        return x.T
    if architecture.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
        return x + np.float32(1)
    if architecture in _LIKE_LLAMA and (".q_proj." in name or ".k_proj." in name):
        heads = c.heads if ".q_proj." in name else c.key_heads
        return x.reshape(heads, 2, c.head_size // 2, -1).swapaxes(1, 2).reshape(x.shape)
    if name.endswith(".conv.conv.weight"):
        return x[:, 0]
    if "query_key_value" in name and c.names.grouped:
        parts = x.reshape(c.key_heads, -1, c.head_size, *x.shape[1:])
        q, k, v = parts[:, :-2], parts[:, -2], parts[:, -1]
        return np.concatenate([part.reshape(-1, *x.shape[1:]) for part in (q, k, v)])
    return x


def add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Metadata of the type that converters use."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_level_texts() -> dict[str, object]:
    """A byte-level tokenizer trained on a few words, as metadata, with three special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "</s>", "<|turn|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 20, trainer)
    plain = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(plain["vocab"], key=plain["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tuple(tokens),
        "tokenizer.ggml.token_type": np.array([3] * 3 + [1] * (len(tokens) - 3), np.int32),
        "tokenizer.ggml.merges": tuple(" ".join(pair) for pair in plain["merges"]),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
    }


TEXT = "The capital of France is Paris, isn't it? In 2024 it has 2,102,650 people.\n\n  x = don't(12345)\tünï €"
