"""Every family of language models against transformers: whole prompts, chunks behind a cache, single steps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from random_models import written
from safetensors.numpy import load_file, save_file

from halo_tvm.errors import UnsupportedModel
from halo_tvm.importers import import_model
from halo_tvm.interpreter import evaluate
from halo_tvm.models import FAMILIES
from halo_tvm.models.decoder import Rope
from halo_tvm.models.decoder.rope import tables, turned_channels

_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 131,
    "max_position_embeddings": 64,
    "intermediate_size": 96,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_GEMMA = {**_GROUPED, "head_dim": 16, "sliding_window": 4}
_GEMMA4 = {
    **_GEMMA,
    "global_head_dim": 32,
    "vocab_size_per_layer_input": 131,
    "hidden_size_per_layer_input": 8,
    "pad_token_id": 0,
}
_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 131, "n_positions": 64}
_OLD = {"hidden_size": 64, "vocab_size": 131}
_FALCON = {**_OLD, "num_hidden_layers": 2, "num_attention_heads": 4}
_MIXTURE = {**_GROUPED, "num_experts_per_tok": 3, "head_dim": 16, "pad_token_id": 0}
_ROUTED = {**_MIXTURE, "num_hidden_layers": 3, "moe_intermediate_size": 40}
_FEW = {"n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
_BASE = {"rope_theta": 1e4}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
_NEMOTRON_H = {
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 4,
    "n_routed_experts": 4,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 48,
    "routed_scaling_factor": 1.5,
}
_HEAD_STATES = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_LONG = {"short_factor": [1.0, 1.5, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0], "long_factor": [4.0] * 8}

_LATENT = {
    **_SIZES,
    "num_hidden_layers": 3,
    "pad_token_id": 0,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "q_lora_rank": 16,
}
_CHOSEN = {
    **_LATENT,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, **_BASE}

# One of each kind of layer runs always, the others with --slow.
ALWAYS = {
    "llama: llama3": {**_GROUPED, "rope_parameters": {"rope_type": "llama3", "factor": 8.0, **_LLAMA3, **_BASE}},
    "gemma3_text": {**_GEMMA, "num_hidden_layers": 6},
    "gpt_neox": _SIZES,
    "bloom": {**_OLD, "n_layer": 2, "n_head": 6, "hidden_size": 96},
    "qwen2_moe": {
        **_MIXTURE,
        "num_hidden_layers": 3,
        "num_experts": 6,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [0],
    },
    "lfm2": {**_GROUPED, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 131,
        "num_heads": 4,
        "head_dim": 32,
        "n_groups": 2,
        "state_size": 8,
        "chunk_size": 4,
    },
    "deepseek_v3": {**_CHOSEN, "rope_parameters": {**_YARN, "mscale_all_dim": 0.7}, "attention_bias": True},
    "gemma4_text": {
        **_GEMMA4,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "final_logit_softcapping": 3.0,
    },
    "opt: 350m": {**_SIZES, "ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
}
MORE = {
    "llama": _GROUPED,
    "llama: linear": {
        **_GROUPED,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, **_BASE},
    },
    "llama: yarn": {
        **_GROUPED,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            **_BASE,
        },
    },
    "mistral": {**_GROUPED, "sliding_window": 5, "head_dim": 32},
    "qwen2": _GROUPED,
    "qwen2: windows": {**_GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {**_GROUPED, "head_dim": 32},
    "smollm3": {**_GROUPED, "no_rope_layer_interval": 2, "pad_token_id": 0},
    "granite": {
        **_GROUPED,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.3,
        "logits_scaling": 2.0,
    },
    "gemma": {**_GROUPED, "head_dim": 16},
    "gemma2": _GEMMA,
    "gemma4_text: experts": {
        **_GEMMA4,
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 3,
        "moe_intermediate_size": 40,
    },
    "phi": {**_SIZES, "num_key_value_heads": 4},
    "phi: norms": {**_GROUPED, "qk_layernorm": True},
    "persimmon": _SIZES,
    "phi3": {**_GROUPED, "pad_token_id": 0, "sliding_window": 6},
    "phi3: longrope": {
        **_GROUPED,
        "pad_token_id": 0,
        "original_max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 32, **_LONG, **_BASE},
    },
    "olmo2": {**_GROUPED, "pad_token_id": 0},
    "gpt_neox: in sequence": {**_SIZES, "use_parallel_residual": False, "rotary_pct": 0.5},
    "gpt2": _GPT,
    "gpt2: scales": {**_GPT, "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
    "gemma: relu": {**_GEMMA, "hidden_act": "relu"},
    "gptj": {**_GPT, "rotary_dim": 8},
    "gpt_neo": {
        **_OLD,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 64,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
    },
    "opt": {**_SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "bloom: 4 heads": {**_OLD, "n_layer": 2, "n_head": 4},
    "falcon": _FALCON,
    "falcon: grouped": {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    "falcon: alibi": {**_FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    "falcon: in sequence": {**_FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
    "stablelm": {**_GROUPED, "use_qkv_bias": True},
    "stablelm: parallel": {**_GROUPED, "use_parallel_residual": True, "qk_layernorm": True},
    "starcoder2": {**_GROUPED, "sliding_window": 5},
    "cohere": _GROUPED,
    "cohere: norms": {**_GROUPED, "use_qk_norm": True},
    "glm": {**_GROUPED, "head_dim": 16, "pad_token_id": 0, "attention_bias": True},
    "glm4": {**_GROUPED, "head_dim": 16, "pad_token_id": 0},
    "llama: biases": {**_GROUPED, "attention_bias": True, "mlp_bias": True},
    "ministral3": {
        **_GROUPED,
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 16,
            **_BASE,
        },
    },
    "ernie4_5": {**_GROUPED, "head_dim": 16, "use_bias": True, "pad_token_id": 0},
    "helium": {**_GROUPED, "head_dim": 16, "pad_token_id": 0},
    "seed_oss": {**_GROUPED, "head_dim": 16, "attention_out_bias": True},
    "internlm3": {**_GROUPED, "head_dim": 16, "qkv_bias": True, "bias": True},
    "iquestcoder": {**_GROUPED, "head_dim": 16},
    "cwm": {**_GROUPED, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 4},
    "hunyuan_v1_dense": {
        **_GROUPED,
        "head_dim": 16,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "dynamic", "alpha": 100.0, "factor": 1.0, **_BASE},
    },
    "hyperclovax": {**_GROUPED, "residual_multiplier": 0.3, "logits_scaling": 0.5},
    "nemotron": {**_GROUPED, "head_dim": 16},
    "arcee": _GROUPED,
    "jais2": _GROUPED,
    "olmo": {**_GROUPED, "pad_token_id": 0, "clip_qkv": 0.5},
    "olmo3": {
        **_GROUPED,
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "sliding_window": 4,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "exaone4": {**_GROUPED, "num_hidden_layers": 4, "sliding_window": 4},
    "exaone4: no windows": {**_GROUPED, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    "cohere2": {**_GROUPED, "num_hidden_layers": 4, "sliding_window": 4},
    "gpt_bigcode": _GPT,
    "gpt_bigcode: many keys": {**_GPT, "multi_query": False},
    "biogpt": {**_SIZES, "layer_norm_eps": 0.1},  # which transformers does not read
    "mpt": {
        "vocab_size": 131,
        "d_model": 96,
        "n_heads": 6,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"clip_qkv": 0.5},
    },
    "vaultgemma": _GEMMA,
    "mixtral": {**_MIXTURE, "num_local_experts": 4, "sliding_window": 5},
    "olmoe": {**_MIXTURE, "num_experts": 8},
    "olmoe: normalised": {**_MIXTURE, "num_experts": 8, "norm_topk_prob": True},
    "qwen3_moe": {
        **_MIXTURE,
        "num_hidden_layers": 3,
        "num_experts": 6,
        "moe_intermediate_size": 40,
        "decoder_sparse_step": 2,
        "norm_topk_prob": True,
    },
    "granitemoeshared": {**_MIXTURE, "num_local_experts": 4, "shared_intermediate_size": 48},
    "granitemoehybrid": {
        **_MIXTURE,
        "num_local_experts": 4,
        "shared_intermediate_size": 48,
        "layer_types": ["full_attention"] * 2,
    },
    "granitemoehybrid: dense": {
        **_GROUPED,
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
        "layer_types": ["full_attention"] * 2,
        "position_embedding_type": "rope",
    },
    "flex_olmo": {**_MIXTURE, "num_experts": 8},
    "phimoe": {
        **_MIXTURE,
        "num_experts_per_tok": 2,
        "num_local_experts": 6,
        "attention_bias": True,
        "lm_head_bias": True,
        "router_jitter_noise": 0.3,
    },
    "phimoe: longrope": {
        **_MIXTURE,
        "num_experts_per_tok": 2,
        "num_local_experts": 6,
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "original_max_position_embeddings": 32,
            "short_mscale": 1.2,
            "long_mscale": 1.3,
            **_LONG,
            **_BASE,
        },
    },
    "ernie4_5_moe": {
        **_MIXTURE,
        "num_hidden_layers": 3,
        "moe_num_experts": 6,
        "moe_k": 3,
        "moe_intermediate_size": 40,
        "moe_num_shared_experts": 2,
    },
    "hunyuan_v1_moe": {**_MIXTURE, "num_experts": 6, "moe_topk": 3},
    "mellum": {
        **_ROUTED,
        "num_experts": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "sliding_window": 5,
    },
    "gpt_oss": {**_MIXTURE, "num_hidden_layers": 3, "num_local_experts": 6, "sliding_window": 5, "swiglu_limit": 0.5},
    "granite_swa": {**_GROUPED, "num_hidden_layers": 3, "sliding_window": 4, "layer_rope_theta": [0, 1e4, 1e3]},
    "granitemoe_swa": {**_MIXTURE, "num_local_experts": 4, "shared_intermediate_size": 0, "sliding_window": 4},
    "nanochat": {**_GROUPED, "bos_token_id": 0, "eos_token_id": 1},
    "exaone": {**_GROUPED, "eos_token_id": 1},
    "dots1": {**_ROUTED, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "glm4_moe": {**_ROUTED, "n_routed_experts": 6, "use_qk_norm": True, "attention_bias": True},
    "sarvam_moe": {**_ROUTED, "n_routed_experts": 6},
    "solar_open": {**_ROUTED, "n_routed_experts": 6},
    "exaone_moe": {**_ROUTED, "num_experts": 6, "num_hidden_layers": 4, "sliding_window": 4},
    "minimax_m2": {**_MIXTURE, "num_local_experts": 6, "rotary_dim": 8},
    "lfm2: biases": {
        **_GROUPED,
        "conv_bias": True,
        "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["full_attention", "conv"],
        "tie_word_embeddings": False,
    },
    "lfm3": {
        **_GROUPED,
        "num_hidden_layers": 3,
        "head_dim": 16,
        "pad_token_id": 0,
        "conv_L_cache": 4,
        "sliding_window": 5,
        "layer_types": ["conv", "full_attention", "sliding_attention"],
    },
    "lfm2_moe": {
        **_ROUTED,
        "num_experts": 6,
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.5,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "mamba": {**_OLD, "num_hidden_layers": 2, "state_size": 8},
    "mamba: biases": {
        **_OLD,
        "num_hidden_layers": 2,
        "state_size": 8,
        "conv_kernel": 3,
        "use_bias": True,
        "use_conv_bias": False,
        "time_step_rank": 5,
        "tie_word_embeddings": False,
    },
    "bamba": {**_GROUPED, "num_hidden_layers": 3, "attn_layer_indices": [1], **_HEAD_STATES},
    "granitemoehybrid: states": {
        **_MIXTURE,
        "num_hidden_layers": 3,
        "num_local_experts": 4,
        "shared_intermediate_size": 48,
        "residual_multiplier": 0.3,
        "embedding_multiplier": 2.0,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        **_HEAD_STATES,
    },
    "qwen3_next": {
        **_ROUTED,
        **_DELTA,
        "num_experts": 6,
        "shared_expert_intermediate_size": 48,
        "norm_topk_prob": True,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "qwen3_5_text": {
        **_GROUPED,
        **_DELTA,
        "num_hidden_layers": 3,
        "head_dim": 32,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "qwen3_5_moe_text": {
        **_ROUTED,
        **_DELTA,
        "num_experts": 6,
        "shared_expert_intermediate_size": 48,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "falcon_h1": {
        **_GROUPED,
        **_HEAD_STATES,
        "mamba_d_ssm": 96,
        "mamba_d_head": 24,
        "ssm_multipliers": [0.5, 1.5, 0.7, 1.2, 0.9],
        "mlp_multipliers": [1.3, 0.6],
        **dict.fromkeys(("key_multiplier", "attention_in_multiplier", "ssm_in_multiplier"), 1.1),
        **dict.fromkeys(("attention_out_multiplier", "ssm_out_multiplier", "lm_head_multiplier"), 0.8),
    },
    "falcon_h1: norm": {**_GROUPED, **_HEAD_STATES, "mamba_d_ssm": 128, "mamba_rms_norm": True},
    "nemotron_h": {
        **_GROUPED,
        **_NEMOTRON_H,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    },
    "nemotron_h: experts": {
        **_GROUPED,
        **_NEMOTRON_H,
        "moe_latent_size": 24,
        "layers_block_type": ["linear_attention", "moe", "full_attention"],
    },
    "apertus": {**_GROUPED, "max_position_embeddings": 64},
    "codegen": {**_GPT, "rotary_dim": 8, "n_head": 8},
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "vocab_size": 131,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 5e3},
        "ffn_config": {"ffn_hidden_size": 40, "hidden_size": 64, "moe_num_experts": 6, "moe_top_k": 3},
    },
    "gemma3n_text": {
        **_GEMMA,
        "num_hidden_layers": 5,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 90,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "altup_num_inputs": 3,
        "intermediate_size": [96, 96, 80, 80, 64],
        "activation_sparsity_pattern": [0.8, 0.8, 0.0, 0.0, 0.0],
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
        "pad_token_id": 0,
    },
    "jamba": {
        **_GROUPED,
        "num_hidden_layers": 4,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 8,
    },
    "jamba: dense": {**_GROUPED, "num_experts": 1, "mamba_d_state": 8, "mamba_proj_bias": True, "attn_layer_offset": 0},
    "bitnet": {**_GROUPED, "attention_bias": True},
    "recurrent_gemma": {**_GROUPED, "num_hidden_layers": 4, "attention_window_size": 5, "lru_width": 64},
    "falcon_mamba": {**_OLD, "num_hidden_layers": 2, "state_size": 8},
    "hy_v3": {**_ROUTED, "num_experts": 6, "router_scaling_factor": 1.5},
    "glm4_moe: groups": {**_ROUTED, "n_routed_experts": 8, "n_group": 4, "topk_group": 2},
    "deepseek_v2": {**_CHOSEN, "topk_method": "group_limited_greedy", "q_lora_rank": None},
    "deepseek_v2: all groups": {**_CHOSEN, "rope_parameters": {**_YARN, "mscale_all_dim": 1.0}},
    "deepseek_v3: no rank": {**_CHOSEN, "q_lora_rank": None, "attention_bias": True, "rope_interleave": False},
    "sarvam_mla": {**_CHOSEN, "n_group": 1, "topk_group": 1, "q_lora_rank": None},
    "glm4_moe_lite": {k: v for k, v in _CHOSEN.items() if k != "first_k_dense_replace"},
    "mistral4": {**_CHOSEN, "rope_parameters": {**_YARN, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
    "youtu": _LATENT,
    "minicpm3": {**_LATENT, "scale_emb": 3, "dim_model_base": 16},
    "granitemoe": {**_MIXTURE, "num_local_experts": 4, "attention_multiplier": 0.2, "residual_multiplier": 0.3},
}
IDS = np.random.default_rng(0).integers(1, 131, (2, 14))


def source_of(directory: Path, kind: str, sizes: dict[str, object]) -> np.ndarray:
    """A model written to `directory`; its logits for `IDS`."""
    return written(directory, kind.split(":")[0], sizes, IDS)


@pytest.mark.parametrize(
    "name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)], ids=lambda n: n.replace(" ", "")
)
def test_a_family_equals_transformers(tmp_path: Path, name: str) -> None:
    """Whole prompts without a cache; then 3 and 7 tokens and single ones behind one, at float64 of the definition."""
    wanted = source_of(tmp_path, name, {**ALWAYS, **MORE}[name])
    near = {"rtol": 0, "atol": 1e-5 * np.abs(wanted).max()}
    model = import_model(str(tmp_path))
    np.testing.assert_allclose(evaluate(model, {"input_ids": IDS})["logits"], wanted, **near)
    prefill, decode, together = (model.entries[n]("float32") for n in ("prefill", "decode", "decode_slots"))
    caches = {s.name: np.zeros([32 if d == "capacity" else d for d in s.shape]) for s in prefill.inputs[2:]}
    at_length = {}
    for begin, end in ((0, 4), (4, 10), *((at, at + 1) for at in range(10, 14))):
        at_length[begin] = {name: cache.copy() for name, cache in caches.items()}
        entry = decode if end - begin == 1 else prefill
        given = {"input_ids": IDS[:1, begin:end], "lengths": np.array([begin], np.int32), **caches}
        np.testing.assert_allclose(evaluate(entry, given)["logits"], wanted[:1, end - 1], **near)
    # Ragged, and a slot that takes no part: it is not written.
    slots = (13, 0, 4)
    several = {name: np.concatenate([at_length[length][name] for length in slots]) for name in caches}
    given = {"input_ids": IDS[:1, slots].T, "lengths": np.array([13, -1, 4], np.int32), **several}
    np.testing.assert_allclose(evaluate(together, given)["logits"][[0, 2]], wanted[0, [13, 4]], **near)
    assert not any(several[name][1].any() for name in caches)
    for entry in (decode, together):
        assert not set(entry.params.recipes) - set(prefill.params.recipes)  # one table of weights
    if any(not name.startswith(("key_", "value_")) for name in caches):  # which has no positions
        with pytest.raises(UnsupportedModel, match="expected keys and values alone in every layer, found"):
            model.with_past(False)
        return
    step = model.with_past(False)  # the same, with caches that come in and go out
    past = {s.name: np.zeros([{"batch": 2, "past": 0}.get(d, d) for d in s.shape]) for s in step.inputs[3:]}
    for begin, end in ((0, 3), (3, 10), (10, 14)):
        where = np.tile(np.arange(begin, end), (2, 1))
        given = {"input_ids": IDS[:, begin:end], "attention_mask": np.ones((2, end), np.int64), "position_ids": where}
        found = evaluate(step, {**given, **past})
        np.testing.assert_allclose(found["logits"], wanted[:, begin:end], **near)
        past = {name: found[name.replace("past_key_values", "present")] for name in past}


def test_tensors_that_are_missing_or_unknown_are_listed(tmp_path: Path) -> None:
    source_of(tmp_path, "llama", _GROUPED)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = np.ones(16, np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)  # known to be nothing
    save_file(tensors, path, metadata={"format": "pt"})
    message = r"found 1 missing \(model.norm.weight\) and 1 unknown \(model.layers.0.self_attn.q_norm.weight\) among"
    with pytest.raises(UnsupportedModel, match=message):
        import_model(str(tmp_path))


def test_a_file_of_the_model_without_its_head(tmp_path: Path) -> None:
    """As Qwen3-Embedding is published: names without their first word; scales of a cache of eight bits are nothing."""
    wanted = source_of(tmp_path, "qwen3", {**_GROUPED, "tie_word_embeddings": True})
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(path).items()}
    tensors["layers.0.self_attn.k_scale"] = np.ones(1, np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    found = evaluate(import_model(str(tmp_path)), {"input_ids": IDS})["logits"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_experts_in_floats_of_four_bits(tmp_path: Path) -> None:
    """As gpt-oss is published: the same answer as of a checkpoint with their values."""
    source_of(tmp_path, "gpt_oss", MORE["gpt_oss"])
    path, about = tmp_path / "model.safetensors", tmp_path / "config.json"
    plain, rng = load_file(path), np.random.default_rng(0)
    packed = dict(plain)
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    for name, weight in plain.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        e, k, n = weight.shape
        numbers = rng.integers(0, 16, (e, n, k))
        exponents = rng.integers(121, 125, (e, n, k // 32))
        values = np.take(magnitudes, numbers % 8) * np.where(numbers < 8, 1, -1)
        values *= np.repeat(2.0 ** (exponents - 127), 32, -1)
        plain[name] = np.ascontiguousarray(values.transpose(0, 2, 1).astype(np.float32))
        pairs = numbers.reshape(e, n, k // 32, 16, 2)
        packed[f"{name}_blocks"] = (pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8)
        packed[f"{name}_scales"] = exponents.astype(np.uint8)
        del packed[name]
    save_file(plain, path, metadata={"format": "pt"})
    wanted = evaluate(import_model(str(tmp_path)), {"input_ids": IDS})["logits"]
    about.write_text(json.dumps({**json.loads(about.read_text()), "quantization_config": {"quant_method": "mxfp4"}}))
    save_file(packed, path, metadata={"format": "pt"})
    np.testing.assert_array_equal(evaluate(import_model(str(tmp_path)), {"input_ids": IDS})["logits"], wanted)
    name = next(name for name in packed if name.endswith("down_proj_scales"))
    save_file({**packed, name: packed[name][:, :, :1].copy()}, path, metadata={"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"that make experts of shape \[6, 96, 64\], found _blocks of shape"):
        import_model(str(tmp_path))


@pytest.mark.parametrize("kind", ["mixtral", "granitemoe"])
def test_experts_that_are_stored_as_one_tensor(tmp_path: Path, kind: str) -> None:
    """As transformers has them in memory: other names, and all experts of a layer together."""
    wanted = source_of(tmp_path, kind, MORE[kind])
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for layer in range(2):
        stem = f"model.layers.{layer}.block_sparse_moe"
        parts = {w: [tensors.pop(f"{stem}.experts.{e}.{w}.weight", None) for e in range(4)] for w in ("w1", "w3", "w2")}
        if kind == "mixtral":
            together = f"model.layers.{layer}.mlp"
            tensors[f"{together}.gate.weight"] = tensors.pop(f"{stem}.gate.weight")
            joined = [np.concatenate(pair) for pair in zip(parts["w1"], parts["w3"])]
            tensors[f"{together}.experts.gate_up_proj"] = np.stack(joined)
            tensors[f"{together}.experts.down_proj"] = np.stack(parts["w2"])
        else:
            for new, old in (("experts.gate_up_proj", "input_linear.weight"), ("router.weight", "router.layer.weight")):
                tensors[f"{stem}.{new}"] = tensors.pop(f"{stem}.{old}")
            tensors[f"{stem}.experts.down_proj"] = tensors.pop(f"{stem}.output_linear.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    found = evaluate(import_model(str(tmp_path)), {"input_ids": IDS})["logits"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_layers_that_guess_further_tokens_are_no_part_of_the_answer(tmp_path: Path) -> None:
    """Behind the last layer, as many as the config says; more of them are unknown."""
    source_of(tmp_path, "solar_open", MORE["solar_open"])
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors = load_file(path)
    tensors |= {f"model.layers.{at}.eh_proj.weight": np.ones((4, 4), np.float32) for at in (3, 4)}
    save_file(tensors, path, metadata={"format": "pt"})
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_nextn_predict_layers": 1}))
    with pytest.raises(UnsupportedModel, match=r"1 unknown \(model.layers.4.eh_proj.weight\) among"):
        import_model(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mpt", {"d_model": 64, "no_bias": False}, "a mpt config with no_bias True, found False"),
        ("llama", {"rope_parameters": {"rope_type": "spiral"}}, "a rope type among default, linear"),
        ("qwen3", {"layer_types": ["linear_attention"] * 2}, "layer_types of sliding_attention or full_attention"),
        ("llama", {"num_attention_heads": 0}, "heads from 1 to 4096 in the model's config, found 0"),
        ("mistral", {"num_hidden_layers": 1 << 40}, "layers from 1 to 1024 in the model's config, found 1099511627776"),
        ("gptj", {**_GPT, "rotary_dim": 7}, "head_dim as a multiple of 2"),
        ("gptj", {**_GPT, "rotary_dim": 1 << 31}, "head_dim from 1 to 4096 in the model's config, found 2147483648"),
        ("gptj", {**_GPT, "rotary_dim": 32}, "positions turn up to all, found 16 and 32 in the model's config"),
        ("glm", {"head_dim": 17}, "heads of an even number of channels, of which positions turn up to all, found 17"),
        ("stablelm", {"hidden_act": "mish"}, "an activation among silu"),
        ("olmoe", {"clip_qkv": 8.0}, "a olmoe config with clip_qkv None, found 8.0"),
        ("olmoe", {"num_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok up to its 2 experts, found 3"),
        (
            "dots1",
            {"n_group": 4, "topk_group": 2, **_FEW},
            "an n_group that divides its 6 experts, into 2 or more, found 4",
        ),
        (
            "dots1",
            {"n_group": 3, "topk_group": 1, **_FEW},
            "a topk_group up to n_group with 3 experts of 2 each, found 1",
        ),
        (
            "gemma3_text",
            {"sliding_window": 4, "use_bidirectional_attention": True},
            "a gemma3_text config with use_bidirectional_attention False, found True",
        ),
        ("gemma4_text", {**_GEMMA4, "use_bidirectional_attention": "all"}, "of vision or null, found 'all'"),
        ("gemma4_text", {**_GEMMA4, "num_kv_shared_layers": 2}, "num_kv_shared_layers from 0 to 1, found 2"),
        ("gemma4_text", {**_GEMMA4, "num_kv_shared_layers": 1}, "that leave a layer of each kind its keys and values"),
        (
            "gemma4_text",
            {**_GEMMA4, "per_layer_config": {"1": {"num_key_value_heads": 3}}},
            "num_key_value_heads of layer 1 that divide its 4 heads, found 3",
        ),
        ("deepseek_v2", {**_CHOSEN, "topk_method": "noaux_tc"}, "a topk_method among greedy and group_limited_greedy"),
        ("deepseek_v3", {**_CHOSEN, "kv_lora_rank": 0}, "kv_lora_rank from 1 to 8192, found 0"),
        ("deepseek_v3", {**_CHOSEN, "scoring_func": "softmax"}, "with scoring_func 'sigmoid', found 'softmax'"),
        ("youtu", {**_LATENT, "partial_rotary_factor": 0.5}, "that qk_rope_head_dim agrees with, found 0.5"),
        (
            "phimoe",
            {"num_experts_per_tok": 3, "num_local_experts": 4},
            "with num_experts_per_tok 2, found 3",
        ),
        (
            "granitemoehybrid",
            {"layer_types": ["rwkv", "attention"], "num_local_experts": 0, "shared_intermediate_size": 48},
            "layer_types of attention, full_attention, mamba, linear_attention for every layer",
        ),
        ("ernie4_5_moe", {"use_bias": True}, "ernie4_5_moe config with use_bias False, found True"),
        (
            "hunyuan_v1_moe",
            {"num_experts": 4, "moe_topk": [1, 2]},
            r"num_experts_per_tok in every layer, found \[1",
        ),
        ("mellum", {"mlp_layer_types": ["dense"]}, "mlp_layer_types of dense or sparse for every layer"),
        ("mixtral", {"num_local_experts": 0, "num_experts_per_tok": 1}, "with experts from 1 to 1048576, found 0"),
    ],
)
def test_what_the_definition_lacks_is_refused(kind: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        family = next(f for f in FAMILIES.values() if kind in f.huggingface_types)
        family.from_huggingface({**_GROUPED, "model_type": kind, **changes})


def test_sizes_of_layers_by_number_or_by_kind() -> None:
    """As transformers writes them, with as many digits as the last number has, and as Google's files say them once."""
    common = {**_GEMMA4, "model_type": "gemma4_text", "num_hidden_layers": 12}
    common |= {"layer_types": ["sliding_attention", "full_attention"] * 6}
    read = FAMILIES["gemma4"].from_huggingface
    numbered = {f"{i:02d}": {"head_dim": 32} for i in range(1, 12, 2)}
    expected = read(common)
    assert read({**common, "global_head_dim": None, "per_layer_config": numbered}) == expected
    assert [expected.at(i).head_size for i in range(12)] == [16, 32] * 6


@pytest.mark.parametrize(("pairs", "interleaved"), [(8, False), (8, True), (3, False), (3, True)])
def test_every_rotation_is_one_of_halves(pairs: int, interleaved: bool) -> None:
    """Turning the ordered channels by halves gives the scores that turning the stored ones their way gives."""
    rope = Rope(tuple(10.0 ** -np.arange(pairs, dtype=np.float64)), interleaved)
    order = turned_channels(rope, 16) or tuple(range(16))
    x = np.random.default_rng(0).standard_normal(16)
    angle = 5 * np.array(rope.frequencies)
    at = [(2 * i, 2 * i + 1) if interleaved else (i, i + pairs) for i in range(pairs)]
    expected = x.copy()
    for (i, j), a in zip(at, angle):
        expected[i], expected[j] = x[i] * np.cos(a) - x[j] * np.sin(a), x[j] * np.cos(a) + x[i] * np.sin(a)
    cos, sin = (table[5] for table in tables(rope, 8, 16))
    first, second = x[list(order)][:8], x[list(order)][8:]
    turned = np.concatenate([first * cos - second * sin, second * cos + first * sin])
    np.testing.assert_allclose(turned, expected[list(order)], atol=1e-6)


def test_sizes_left_open_follow_the_others() -> None:
    config = dataclasses.replace(next(iter(FAMILIES["gpt2"].presets.values())), hidden=256, heads=4)
    assert (config.head_size, config.key_heads, config.query_width) == (64, 4, 256)
