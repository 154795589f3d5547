"""Tiny Hugging Face directories with seeded weights, written by the tests that read them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file

from halo_tvm.models import FAMILIES
from halo_tvm.models.builder import RandomWeights
from halo_tvm.models.decoder import DecoderConfig, Layer, Names
from halo_tvm.models.decoder.rope import rope_of

CONFIGS = {
    "gpt2": {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 131,
        "n_positions": 64,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    "bert": {
        "model_type": "bert",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 131,
        "max_position_embeddings": 64,
        "intermediate_size": 96,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "vocab_size": 131,
        "max_position_embeddings": 64,
        "intermediate_size": 96,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 0,
    },
    "llama": {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 131,
        "max_position_embeddings": 64,
        "intermediate_size": 96,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "lfm2": {
        "model_type": "lfm2",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 131,
        "max_position_embeddings": 64,
        "block_ff_dim": 96,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "mamba": {
        "model_type": "mamba",
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "state_size": 8,
        "vocab_size": 131,
    },
    "bamba": {
        "model_type": "bamba",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 131,
        "max_position_embeddings": 64,
        "attn_layer_indices": [1],
        "mamba_n_heads": 2,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
    },
}


def tiny_llama(*, theta: float = 1e4, **sizes: object) -> DecoderConfig:
    """A decoder with Llama's tensors and plain rotations; `sizes` are fields of the configuration.

    With norms of queries and keys (`query_key_norm="head"`) attention reads q, k and v apart, else as one row.
    """
    if "query_key_norm" in sizes:
        sizes["names"] = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
    rope = rope_of(int(sizes["head_dim"]), theta, {}, int(sizes["positions"]))
    return DecoderConfig(**sizes, pattern=(Layer(rope),))


def write_checkpoint(directory: Path, kind: str, *, prefix: str = "", **changes: object) -> Path:
    """A directory with config.json and model.safetensors of the tiny model `kind`."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS[kind], **changes}
    (directory / "config.json").write_text(json.dumps(config))
    family = FAMILIES[kind]
    model = family.build(kind, family.from_huggingface(config), RandomWeights(3), {})
    tensors = {
        prefix + n: s.load()
        for n, s in model.params.sources.items()
        if not n.startswith(("rotary.", "zeros.", "ones."))
    }
    save_file(tensors, directory / "model.safetensors")
    return directory
