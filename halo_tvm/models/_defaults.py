"""What a config.json means that leaves a word out: the default of its model type, as transformers has it.

Definitions have the defaults of most types themselves: as many heads of keys as of queries, an epsilon of 1e-6,
rotations of base 10000. Here are those of types that differ.
"""

from __future__ import annotations

from collections.abc import Mapping

_ROTATION = ("rope_parameters", "rope_scaling", "rope_theta")
Words = dict[str, object]
# Types of which a config may say how much of a head positions turn. transformers reads it for no other type, whatever
# the file says, unless another word of the rotation asks for it.
_PART = "partial_rotary_factor"
_TURN_A_PART = frozenset(
    "bamba glm glm4 glm4_moe glm4_moe_lite glm4v_moe_text glm4v_text glm_ocr_text gpt_neox mellum minimax_m2 nemotron "
    "persimmon phi phi3 qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma solar_open stablelm".split()
)
_KV2: Words = {"num_key_value_heads": 2}
_KV4: Words = {"num_key_value_heads": 4}
_KV8: Words = {"num_key_value_heads": 8}
_EPS5: Words = {"rms_norm_eps": 1e-5}
_GEMMA: Words = {**_KV4, "head_dim": 256}
_GLM: Words = {**_KV2, "rms_norm_eps": 1.5625e-07, "attention_bias": True}
_MISTRAL: Words = {**_KV8, "sliding_window": 4096}
_YARN: Words = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}
_MISTRAL_YARN: Words = {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
_DEFAULTS: dict[str, Words] = {
    "apertus": {
        **_EPS5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 12000000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    },
    "arcee": _EPS5,
    "bamba": _KV8 | _EPS5,
    "bitnet": _EPS5 | {"rope_theta": 500000.0, "num_key_value_heads": 5},
    "cohere": {"rope_theta": 500000.0},
    "cwm": {
        **_KV8,
        **_EPS5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "deepseek_v2": {"q_lora_rank": 1536},
    "deepseek_v3": {
        "q_lora_rank": 1536,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
    },
    "dots1": {"norm_topk_prob": False},
    "ernie4_5": {**_KV2, **_EPS5, "head_dim": 128},
    "ernie4_5_moe": _KV4 | _EPS5,
    "exaone": _KV8,
    "exaone4": {**_EPS5, "sliding_window": 4096},
    "exaone_moe": {**_EPS5, "sliding_window": 4096, "routed_scaling_factor": 2.5},
    "falcon": {"max_position_embeddings": 2048},
    "falcon_h1": _KV8 | _EPS5,
    "gemma": {"head_dim": 256},
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gemma3n_text": {"num_key_value_heads": 2, "head_dim": 256, "num_kv_shared_layers": 15},
    "gemma4_text": _GEMMA | {"hidden_size_per_layer_input": 256},
    "gemma4_unified_text": _GEMMA | {"sliding_window": 1024},
    "glm": _GLM,
    "glm4": _GLM,
    "glm4_moe": {**_KV8, **_EPS5, "first_k_dense_replace": 1},
    "glm4_moe_lite": {**_EPS5, "q_lora_rank": 768, "routed_scaling_factor": 1.8},
    "glm4v_moe_text": {**_KV8, **_EPS5, "attention_bias": True, "first_k_dense_replace": 1},
    "glm4v_text": _KV2 | _EPS5 | {"attention_bias": True},
    "glm_ocr_text": _KV8 | _EPS5,
    "granite_docling_text": {
        **_KV4,
        **_EPS5,
        "tie_word_embeddings": True,
        "embedding_multiplier": 12.0,
        "logits_scaling": 4.0,
        "residual_multiplier": 0.263,
        "attention_multiplier": 0.015625,
    },
    "gpt_oss": {
        **_KV8,
        **_EPS5,
        "rope_parameters": {
            **_YARN,
            "rope_theta": 150000.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    },
    "granite_swa": {**_KV4, **_EPS5, "tie_word_embeddings": True},
    "granitemoehybrid": {"rms_norm_eps": 1e-6, "num_local_experts": 8, "shared_intermediate_size": 1024},
    "helium": {"rms_norm_eps": 1e-8},
    "hunyuan_v1_dense": _EPS5,
    "hunyuan_v1_moe": _EPS5,
    "hy_v3": {**_KV8, **_EPS5, "head_dim": 128},
    "internlm3": _KV2 | _EPS5,
    "iquestcoder": _KV8 | _EPS5,
    "jamba": _KV8,
    "lfm2": _KV8,
    "lfm2_moe": _KV8,
    "lfm3": _KV4,
    "m2m_100": {"activation_function": "relu", "scale_embedding": True},
    "mellum": {
        **_KV4,
        "head_dim": 128,
        "norm_topk_prob": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "minicpm3": {"q_lora_rank": 768},
    "minimax_m2": {**_KV8, "head_dim": 128},
    "ministral": _MISTRAL,
    "ministral3": {
        **_KV8,
        **_EPS5,
        "rope_parameters": {
            **_MISTRAL_YARN,
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
        },
    },
    "mistral": _MISTRAL,
    "mistral4": {
        "q_lora_rank": 1024,
        "n_shared_experts": 1,
        "rope_parameters": {
            **_MISTRAL_YARN,
            "rope_theta": 10000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "partial_rotary_factor": 0.5,
        },
    },
    "mixtral": {**_KV8, **_EPS5, "rope_theta": 1000000.0},
    "mt5": {"feed_forward_proj": "gated-gelu"},
    "nemotron_h": _KV8,
    "olmo2": _EPS5,
    "olmo3": _EPS5,
    "olmoe": _EPS5,
    "paddleocr_vl_text": _KV2 | _EPS5 | {"head_dim": 128},
    "phi3": _EPS5,
    "phimoe": {**_KV8, **_EPS5, "rope_theta": 1000000.0},
    "plbart": {"scale_embedding": True},
    "qwen2_5_omni_text": _KV4 | {"rope_theta": 1000000.0, "tie_word_embeddings": True},
    "qwen2_5_vl_text": _KV8 | _EPS5 | {"max_window_layers": 80, "rope_theta": 1000000.0},
    "qwen2_vl_text": _KV8 | _EPS5 | {"max_window_layers": 80, "rope_theta": 1000000.0},
    "qwen3_5_moe_text": {**_KV2, "head_dim": 256},
    "qwen3_5_text": _KV4,
    "qwen3_moe": _KV4,
    "qwen3_next": {**_KV2, "head_dim": 256, "intermediate_size": 5632},
    "qwen3_omni_moe_text": _KV4 | {"norm_topk_prob": True, "rope_theta": 1000000.0},
    "qwen3_vl_moe_text": {
        "head_dim": 128,
        "norm_topk_prob": True,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
    "qwen3_vl_text": {"head_dim": 128, "rope_theta": 500000.0},
    "sarvam_mla": {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5},
    "sarvam_moe": {**_KV4, "rope_theta": 8000000.0, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5},
    "seed_oss": _KV8,
    "smollm3": {**_KV4, "tie_word_embeddings": True},
    "solar_open": {**_KV8, **_EPS5, "head_dim": 128, "rope_theta": 1000000.0},
    "starcoder2": {**_KV2, "hidden_act": "gelu_pytorch_tanh"},
    "umt5": {"feed_forward_proj": "gated-gelu"},
    "vaultgemma": _GEMMA,
    "youtu": {"q_lora_rank": 1536},
}


def completed(config: Mapping[str, object]) -> Mapping[str, object]:
    """`config` with the words of its model type that it leaves out; a null in it is said, not left out."""
    kind = str(config.get("model_type"))
    missing = _DEFAULTS.get(kind, {})
    if any(word in config for word in _ROTATION):  # which says the whole of it
        missing = {word: value for word, value in missing.items() if word != "rope_parameters"}
    words = {**missing, **config}
    return words if kind in _TURN_A_PART else _turning_whole_heads(words)


def _turning_whole_heads(config: Mapping[str, object]) -> Mapping[str, object]:
    """`config` without the part of a head that turns, where its type and the kind of its rotation have none."""
    words = {word: value for word, value in config.items() if word != _PART}
    for place in ("rope_parameters", "rope_scaling"):
        rotation = words.get(place)
        if isinstance(rotation, Mapping) and rotation.get("rope_type", rotation.get("type", "default")) == "default":
            words[place] = {word: value for word, value in rotation.items() if word != _PART}
    return words
