"""What single kinds of models call otherwise, or keep in other places than metadata, in the words of config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ._metadata import Metadata, refuse
from ._states import delta_rule, falcon_h1, granite_hybrid, mamba, mamba2, nemotron_h
from .container import floats

Words = dict[str, object]
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}  # layers; scores of these are scaled by the width of all heads


def particular(m: Metadata, words: Mapping[str, object]) -> Words:
    """Further `words` of the model, which go before those of all models."""
    make = _MAKERS.get(m.architecture)
    return make(m, words) if make else {}


def _gemma(m: Metadata, words: Mapping[str, object]) -> Words:
    whole = m.whole("block_count") == _LARGEST_GEMMA[m.architecture]
    size = words["hidden_size"] / words["num_attention_heads"] if whole else words["head_dim"]  # type: ignore[operator]
    local = {"rope_local_base_freq": m.own.get("rope.freq_base_swa", 10000.0)} if m.architecture == "gemma3" else {}
    return {"query_pre_attn_scalar": size, **local}


def _gemma4(m: Metadata, words: Mapping[str, object]) -> Words:
    """Heads of two sizes, and frequencies of which a tensor says how many turn nothing."""
    kinds, heads = words.get("layer_types"), m.by_layer("attention.head_count_kv")
    wide, narrow = m.whole("attention.key_length"), m.whole("attention.key_length_swa")
    if not isinstance(kinds, list):
        raise KeyError("gemma4.attention.sliding_window_pattern")
    if m.own.get("rope.dimension_count_swa", narrow) != narrow or m.own.get("rope.dimension_count", wide) != wide:
        refuse("a rope.dimension_count of whole heads", repr(m.own.get("rope.dimension_count")))
    slides = [kind == "sliding_attention" for kind in kinds]
    divisors = floats(m.file, "rope_freqs.weight").reshape(-1)
    still = divisors >= _NO_ROTATION
    if len(divisors) != wide // 2 or np.any(divisors[~still] != 1) or np.any(np.diff(still.astype(int)) < 0):
        refuse("rope_freqs.weight of ones, and of huge numbers behind them", repr(divisors[:8].tolist()))
    feeds = m.by_layer("feed_forward_length")
    if set(feeds) - {min(feeds), 2 * min(feeds)}:
        refuse("feed_forward_length of one size and its double", repr(sorted(set(feeds))[:8]))
    whole = [i for i, slide in enumerate(slides) if not slide]
    found: Words = {
        "intermediate_size": min(feeds),
        "use_double_wide_mlp": len(set(feeds)) > 1,
        "num_kv_shared_layers": m.own.get("attention.shared_kv_layers", 0),
        "attention_k_eq_v": any(f"blk.{i}.attn_v.weight" not in m.file.tensors for i in whole[:1]),
        "per_layer_config": {
            i: {"head_dim": narrow if slide else wide, "num_key_value_heads": heads[i]}
            for i, slide in enumerate(slides)
        },
        "hidden_size_per_layer_input": m.own.get("embedding_length_per_layer_input", 0),
        "rope_parameters": {
            "sliding_attention": {"rope_theta": m.own.get("rope.freq_base_swa", 10000.0)},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": m.own.get("rope.freq_base"),
                "partial_rotary_factor": 1 - np.count_nonzero(still) / len(still),
            },
        },
        "enable_moe_block": bool(m.own.get("expert_count")),
        "top_k_experts": m.own.get("expert_used_count"),
    }
    if found["hidden_size_per_layer_input"]:
        found["vocab_size_per_layer_input"] = m.file.tensors["per_layer_token_embd.weight"].shape[0]
    return found


_NO_ROTATION = 1e20  # what a frequency is divided by that turns nothing


def _latents(m: Metadata, words: Mapping[str, object]) -> Words:
    """Sizes of what is kept of a token, and of what heads make of it; older files have those of heads alone."""
    turned = m.whole("rope.dimension_count")
    key = m.whole("attention.key_length_mla", m.own.get("attention.key_length"))  # type: ignore[arg-type]
    value = m.own.get("attention.value_length_mla", m.own.get("attention.value_length"))
    return {
        "kv_lora_rank": m.whole("attention.kv_lora_rank"),
        "q_lora_rank": m.own.get("attention.q_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "v_head_dim": value,
        "head_dim": None,
        "attention_bias": m.has("blk.{}.attn_output.bias"),
    }


def _deepseek(m: Metadata, words: Mapping[str, object]) -> Words:
    """Which of the models of this name it is follows from how experts are chosen, if there are any."""
    found = _latents(m, words)
    normalised = bool(m.own.get("expert_weights_norm", False))
    if not m.own.get("expert_count"):
        return {**found, "model_type": "youtu"}
    said = m.own.get("expert_gating_func") or (2 if m.has("blk.{}.exp_probs_b.bias") else 1)
    kind = "deepseek_v3" if said == 2 else "mistral4" if normalised else "deepseek_v2"
    grouped = m.own.get("expert_group_count", 1) != 1
    if kind == "deepseek_v2" and grouped:
        found["topk_method"] = "group_limited_greedy"
    return {
        **found,
        "model_type": kind,
        "norm_topk_prob": normalised,
        "n_group": m.own.get("expert_group_count", 1),
        "topk_group": m.own.get("expert_group_used_count", 1),
        "n_shared_experts": m.own.get("expert_shared_count", 0),
        "first_k_dense_replace": m.own.get("leading_dense_block_count", 0),
        "routed_scaling_factor": m.own.get("expert_weights_scale", 1.0),
    }


def _mistral4(m: Metadata, words: Mapping[str, object]) -> Words:
    """Files say nothing of the temperature that grows beyond the original length: contexts end there."""
    found = {**_deepseek(m, words), "norm_topk_prob": bool(m.own.get("expert_weights_norm", True))}
    scaling = words.get("rope_scaling")
    if isinstance(scaling, dict):
        beta = scaling.get("llama_4_scaling_beta") or _MISTRAL4_BETA
        found["rope_scaling"] = {**scaling, "llama_4_scaling_beta": beta}
    return {**found, "model_type": "mistral4"}


_MISTRAL4_BETA = 0.1


def _minicpm(m: Metadata, words: Mapping[str, object]) -> Words:
    """Granite's factors, which the first files leave out."""
    missing = [key for key in ("embedding_scale", "residual_scale", "logit_scale") if key not in m.own]
    if missing:
        refuse(f"minicpm.{missing[0]}", "none")
    return {"attention_multiplier": words["head_dim"] ** -0.5}  # type: ignore[operator]


def _corrected(m: Metadata, words: Mapping[str, object]) -> Words:
    count = m.own.get("expert_shared_count", 1)
    return {
        "n_shared_experts": count,
        "num_shared_experts": count,
        "use_qk_norm": m.has("blk.{}.attn_q_norm.weight"),
        "norm_topk_prob": bool(m.own.get("expert_weights_norm", True)),
    }


def _ernie_moe(m: Metadata, words: Mapping[str, object]) -> Words:
    return {
        "moe_num_shared_experts": m.own.get("expert_shared_count", 0),
        "moe_layer_start_index": m.own.get("leading_dense_block_count", 0),
        "moe_layer_interval": m.own.get("interleave_moe_layer_step", 1),
    }


def _falcon(m: Metadata, words: Mapping[str, object]) -> Words:
    heads = words.get("num_key_value_heads")
    new = m.has("blk.{}.attn_norm_2.weight")
    return {"multi_query": heads == 1, "new_decoder_architecture": new, "num_kv_heads": heads}


def _big_code(m: Metadata, words: Mapping[str, object]) -> Words:
    return {"multi_query": words.get("num_key_value_heads") == 1, "head_dim": None}


def _mpt(m: Metadata, words: Mapping[str, object]) -> Words:
    heads = m.whole("attention.head_count")
    if m.own.get("attention.head_count_kv", heads) != heads:
        refuse("as many heads of keys as of queries", repr(m.own["attention.head_count_kv"]))
    bias = m.own.get("attention.max_alibi_bias", 0.0)
    clip = m.own.get("attention.clamp_kqv") or None
    return {
        "d_model": words["hidden_size"],
        "n_layers": words["num_hidden_layers"],
        "n_heads": heads,
        "expansion_ratio": m.whole("feed_forward_length") / m.whole("embedding_length"),
        "max_seq_len": m.whole("context_length"),
        "attn_config": {"alibi": bool(bias), "alibi_bias_max": bias, "clip_qkv": clip},
    }


def _short_convolutions(m: Metadata, words: Mapping[str, object]) -> Words:
    """Layers without heads of keys have a short convolution instead."""
    attending = [i for i, heads in enumerate(m.by_layer("attention.head_count_kv")) if heads]
    return {"full_attn_idxs": attending, "num_dense_layers": m.own.get("leading_dense_block_count", 0)}


def _normed_heads(m: Metadata, words: Mapping[str, object]) -> Words:
    """Larger models of these kinds have layer norms of queries and keys."""
    return dict.fromkeys(("qk_layernorm", "use_qk_norm"), m.has("blk.{}.attn_q_norm.weight"))


def _granite(m: Metadata, words: Mapping[str, object]) -> Words:
    if not m.own.get("rope.scaling.finetuned", True):
        refuse("a granite model whose positions turn heads", "rope.scaling.finetuned False")
    return {"shared_intermediate_size": m.own.get("expert_shared_feed_forward_length", 0)}


def _bitnet(m: Metadata, words: Mapping[str, object]) -> Words:
    """The first files do not say the activation."""
    return {"hidden_act": m.own.get("hidden_activation", "silu")}


_MAKERS: dict[str, Callable[[Metadata, Mapping[str, object]], Words]] = {
    "gemma2": _gemma,
    "gemma3": _gemma,
    "gemma4": _gemma4,
    "deepseek2": _deepseek,
    "mistral4": _mistral4,
    "bitnet": _bitnet,
    "minicpm": _minicpm,
    "minicpm3": _latents,
    "dots1": _corrected,
    "glm4moe": _corrected,
    "exaone-moe": _corrected,
    "ernie4_5-moe": _ernie_moe,
    "falcon": _falcon,
    "starcoder": _big_code,
    "mpt": _mpt,
    "lfm2": _short_convolutions,
    "lfm2moe": _short_convolutions,
    "command-r": _normed_heads,
    "stablelm": _normed_heads,
    "granite": _granite,
    "granitemoe": _granite,
    "granitehybrid": granite_hybrid,
    "falcon-h1": falcon_h1,
    "mamba": mamba,
    "mamba2": mamba2,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h,
    "qwen3next": delta_rule,
    "qwen35": delta_rule,
    "qwen35moe": delta_rule,
}
