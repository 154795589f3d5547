"""Tiny models of transformers as rows of a table, with what the metadata of their GGUF files has beside config.json."""

from __future__ import annotations

_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "max_position_embeddings": 64,
    "intermediate_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEADS = {**_SIZES, "head_dim": 16}
_ROUTED = {**_HEADS, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
_LATENT = {
    **_SIZES,
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
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
_OF_CHOSEN = {
    "expert_count": 8,
    "expert_feed_forward_length": 40,
    "expert_weights_scale": 1.5,
    "leading_dense_block_count": 1,
}

_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_EVERY = {"full_attention_interval": 2}
_SECTIONS = {**_EVERY, "rope.dimension_sections": [11, 11, 10, 0]}
_SHARED = {"expert_feed_forward_length": 40, "expert_shared_feed_forward_length": 48}
_STATES = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
_GRANITE = {"embedding_multiplier": 2.0, "attention_multiplier": 0.2, "residual_multiplier": 0.3, "logits_scaling": 2.0}
_FACTORS = {"embedding_scale": 2.0, "attention.scale": 0.2, "residual_scale": 0.3, "logit_scale": 2.0}
_HYBRID = {
    **_SIZES,
    **_STATES,
    **_GRANITE,
    "num_hidden_layers": 3,
    "shared_intermediate_size": 48,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_OF_HYBRID = {
    **_FACTORS,
    "attention.head_count_kv": [0, 2, 0],
    "expert_shared_feed_forward_length": 48,
    "rope.scaling.finetuned": False,
}
_NEMOTRON_H = {
    **_HEADS,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 4,
}
_ALONE = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 131, "pad_token_id": 0, "eos_token_id": 1}
_OF_MAMBA = {
    "feed_forward_length": 0,
    "attention.head_count": 0,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 4,
    "context_length": 1 << 20,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
_GEMMA4 = {
    **_HEADS,
    "global_head_dim": 32,
    "sliding_window": 4,
    "vocab_size_per_layer_input": 131,
    "hidden_size_per_layer_input": 8,
}
_OF_GEMMA4 = {
    "attention.sliding_window": 4,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
}

# A name, in front of a colon the architecture -> model type, config.json, and metadata that no word of it stands for.
MODELS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "deepseek2: sigmoids": (
        "deepseek_v3",
        {**_CHOSEN, "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7}},
        {**_OF_CHOSEN, "expert_shared_count": 1, "expert_weights_norm": True, "expert_gating_func": 2},
    ),
    "deepseek2: older": (
        "deepseek_v2",
        {**_CHOSEN, "topk_method": "group_limited_greedy", "q_lora_rank": None},
        {**_OF_CHOSEN, "expert_shared_count": 2},
    ),
    "deepseek2: dense": ("youtu", _LATENT, {}),
    "command-r": ("cohere", {**_SIZES, "use_qk_norm": True}, {"logit_scale": 0.0625}),
    "stablelm": ("stablelm", {**_SIZES, "qk_layernorm": True}, {"rope.dimension_count": 4}),
    "mistral4": (
        "mistral4",
        {**_CHOSEN, "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
        {**_OF_CHOSEN, "expert_shared_count": 1, "expert_weights_norm": True},
    ),
    "mistral3": (
        "ministral3",
        {**_HEADS, "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
        {"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1, "rope.dimension_count": 16},
    ),
    "qwen3next": (
        "qwen3_next",
        {**_ROUTED, **_DELTA, "num_experts": 6, "shared_expert_intermediate_size": 48, "norm_topk_prob": True},
        {**_EVERY, **_SHARED},
    ),
    "qwen3next: older": (
        "qwen3_next",
        {**_ROUTED, **_DELTA, "num_experts": 6, "shared_expert_intermediate_size": 48, "norm_topk_prob": True},
        {**_EVERY, **_SHARED},
    ),
    "qwen35": ("qwen3_5_text", {**_SIZES, **_DELTA, "head_dim": 32}, _SECTIONS),
    "qwen35moe": (
        "qwen3_5_moe_text",
        {**_ROUTED, **_DELTA, "num_experts": 6, "shared_expert_intermediate_size": 48},
        {**_SECTIONS, **_SHARED},
    ),
    "granitehybrid: experts": (
        "granitemoehybrid",
        {**_HYBRID, "num_local_experts": 4, "num_experts_per_tok": 3},
        _OF_HYBRID,
    ),
    "granitehybrid: turned": (
        "granitemoehybrid",
        {**_HYBRID, "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"},
        {**_OF_HYBRID, "rope.scaling.finetuned": True},
    ),
    "falcon-h1": (
        "falcon_h1",
        {
            **_HEADS,
            **_STATES,
            "mamba_d_ssm": 96,
            "mamba_d_head": 24,
            "ssm_multipliers": [0.5, 1.5, 0.7, 1.2, 0.9],
            "mlp_multipliers": [1.3, 0.6],
            **dict.fromkeys(("key_multiplier", "attention_in_multiplier", "ssm_in_multiplier"), 1.1),
            **dict.fromkeys(("attention_out_multiplier", "ssm_out_multiplier", "lm_head_multiplier"), 0.8),
            "embedding_multiplier": 1.5,
            "tie_word_embeddings": False,
        },
        {},
    ),
    "falcon-h1: norm": (
        "falcon_h1",
        {**_HEADS, **_STATES, "mamba_d_ssm": 128, "mamba_rms_norm": True, "mamba_norm_before_gate": False}
        | {"tie_word_embeddings": False},
        {},
    ),
    "mamba": ("mamba", {**_ALONE, "state_size": 8}, {**_OF_MAMBA, "ssm.dt_b_c_rms": False}),
    "mamba: norms": ("falcon_mamba", {**_ALONE, "state_size": 8}, {**_OF_MAMBA, "ssm.dt_b_c_rms": True}),
    "mamba2": (
        "mamba2",
        {**_ALONE, "num_heads": 4, "head_dim": 32, "n_groups": 2, "state_size": 8, "chunk_size": 4},
        {**_OF_MAMBA, "ssm.group_count": 2},
    ),
    "nemotron_h": (
        "nemotron_h",
        {**_NEMOTRON_H, "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
        {"block_count": 4, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 96, 0, 0]}
        | {"expert_count": None, "expert_used_count": None, "expert_group_count": None},
    ),
    "nemotron_h_moe": (
        "nemotron_h",
        {
            **_NEMOTRON_H,
            "n_routed_experts": 4,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 1.5,
            "moe_latent_size": 24,
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
        },
        {
            **_SHARED,
            "block_count": 3,
            "attention.head_count_kv": [0, 0, 2],
            "feed_forward_length": [0, 40, 0],
            "expert_count": 4,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "moe_latent_size": 24,
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "final_logit_softcapping": 3.0,
        },
        {
            **_OF_GEMMA4,
            "attention.sliding_window_pattern": [True, False] * 3,
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
            "feed_forward_length": [96] * 4 + [192] * 2,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4: experts": (
        "gemma4_text",
        {
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
        {
            **_OF_GEMMA4,
            "attention.sliding_window_pattern": [True, False],
            "attention.shared_kv_layers": 0,
            "attention.head_count_kv": [2, 1],
            "embedding_length_per_layer_input": 0,
            "expert_feed_forward_length": 40,
        },
    ),
    "phimoe": (
        "phimoe",
        {**_SIZES, "num_local_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True},
        {"rope.dimension_count": 16},
    ),
    "ernie4_5-moe": (
        "ernie4_5_moe",
        {**_SIZES, "num_hidden_layers": 3, "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 40}
        | {"moe_num_shared_experts": 2},
        {
            "expert_count": 6,
            "expert_used_count": 3,
            "interleave_moe_layer_step": 1,
            "leading_dense_block_count": 1,
            "expert_feed_forward_length": 40,
            "expert_shared_count": 2,
        },
    ),
    "hunyuan-moe": (
        "hunyuan_v1_moe",
        {**_HEADS, "num_experts": 6, "moe_topk": 3},
        {"expert_used_count": 3, "expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 96}
        | {"expert_shared_count": 1},
    ),
    "exaone-moe": (
        "exaone_moe",
        {**_ROUTED, "num_experts": 6, "num_hidden_layers": 4, "sliding_window": 4, "routed_scaling_factor": 1.5}
        | {"first_k_dense_replace": 1},
        {
            "attention.sliding_window": 4,
            "attention.sliding_window_pattern": [True, True, True, False],
            "expert_feed_forward_length": 40,
            "expert_shared_count": 1,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
        },
    ),
    "minimax-m2": (
        "minimax_m2",
        {**_HEADS, "num_experts_per_tok": 3, "num_local_experts": 6, "rotary_dim": 8},
        {"expert_feed_forward_length": 96, "rope.dimension_count": 8, "expert_gating_func": 2},
    ),
    "bitnet": ("bitnet", {**_SIZES, "tie_word_embeddings": True}, {"hidden_activation": "relu2"}),
    "minicpm": ("granite", {**_SIZES, **_GRANITE, "attention_multiplier": 0.25}, {**_FACTORS, "attention.scale": None}),
    "minicpm3": ("minicpm3", {**_LATENT, "v_head_dim": 16}, {}),
    "mpt": (
        "mpt",
        {"vocab_size": 131, "d_model": 96, "n_heads": 6, "n_layers": 2, "max_seq_len": 64}
        | {"attn_config": {"clip_qkv": 0.5}},
        {
            "feed_forward_length": 384,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.clamp_kqv": 0.5,
            "attention.max_alibi_bias": 8.0,
        },
    ),
    "starcoder": (
        "gpt_bigcode",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 131, "n_positions": 64},
        {"feed_forward_length": 256, "attention.head_count_kv": 1},
    ),
    "jais2": ("jais2", _SIZES, {"rope.dimension_count": 16}),
}
