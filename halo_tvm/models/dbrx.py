"""DBRX: layer norms without biases, one tensor of queries, keys and values that are clipped, and fine experts.

References
    its model card (databricks/dbrx-base), as transformers reads it
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, ExpertNames, Names, Reader, decoder_family
from .llama import llama
from .mixtures import mixture_of

_NAMES = Names(
    embedding="transformer.wte",
    layer="transformer.blocks.{}",
    attention_norm="norm_attn_norm.norm_1",
    attention="norm_attn_norm.attn",
    joined="norm_attn_norm.attn.Wqkv",
    output="norm_attn_norm.attn.out_proj",
    ffn_norm="norm_attn_norm.norm_2",
    ffn="ffn",
    norm="transformer.norm_f",
)
_EXPERTS = ExpertNames(
    router="ffn.router.layer",
    stacked_gate="ffn.experts.mlp.w1",
    stacked_up="ffn.experts.mlp.v1",
    stacked_down="ffn.experts.mlp.w2",
)


def _dbrx(read: Reader) -> DecoderConfig:
    attention, experts = (_part(read, name) for name in ("attn_config", "ffn_config"))
    action = experts.get("ffn_act_fn", default={"name": "silu"})
    if not isinstance(action, dict):
        raise TypeError(f"ffn_act_fn {action!r:.80} is no object")
    words = {
        "hidden_size": read.whole("d_model", "hidden_size", default=2048),
        "num_attention_heads": read.whole("n_heads", "num_attention_heads", default=16),
        "num_hidden_layers": read.whole("n_layers", "num_hidden_layers", default=24),
        "max_position_embeddings": read.whole("max_seq_len", "max_position_embeddings", default=2048),
        "num_key_value_heads": attention.whole("kv_n_heads", default=1),
        "rope_theta": attention.number("rope_theta", default=10000.0),
        "intermediate_size": experts.whole("ffn_hidden_size", default=3584),
        "num_experts": experts.whole("moe_num_experts", default=4),
        "num_experts_per_tok": experts.whole("moe_top_k", default=1),
        "hidden_act": action.get("name", "silu"),
    }
    read = Reader({**read.config, **words})
    power = experts.config.get("moe_normalize_expert_weights", 1.0)  # null: they are not divided by anything
    if power not in (None, 1):
        read.refuse("moe_normalize_expert_weights 1 or null", repr(power)[:80])
    mixture = mixture_of(read, width="intermediate_size", normalised=power == 1, flat=True, names=(_EXPERTS,))
    return replace(
        llama(read),
        norm="layer",
        norm_bias=False,
        eps=1e-5,
        clip=attention.optional("clip_qkv"),
        mixture=mixture,
        names=_NAMES,
    )


def _part(read: Reader, name: str) -> Reader:
    found = read.get(name, default={})
    if not isinstance(found, dict):
        raise TypeError(f"{name} {found!r:.80} is no object")
    return Reader({**found, "model_type": read.kind})


DBRX = decoder_family("dbrx", _dbrx, even=("head_dim",), tied=("transformer.wte", "lm_head"))
