"""GPT-NeoX and Pythia: attention and feed-forward in parallel, a quarter of each head turned, q, k, v in one tensor.

Persimmon has the two one behind the other, half of a head turned, and layer norms of queries and keys.
References
    arXiv:2204.06745
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family

_NAMES = Names(
    embedding="gpt_neox.embed_in",
    layer="gpt_neox.layers.{}",
    attention="attention",
    joined="attention.query_key_value",
    grouped=True,
    output="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
)


def _read(read: Reader) -> DecoderConfig:
    bias = read.flag("attention_bias", default=True)
    return DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        feed_forward=read.whole("intermediate_size"),
        vocabulary=read.whole("vocab_size"),
        positions=read.context,
        pattern=(Layer(read.rope(share=0.25)),),
        norm="layer",
        eps=read.number("layer_norm_eps", default=1e-5),
        parallel=read.flag("use_parallel_residual", default=True),
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=True,
        activation=read.activation("hidden_act", default="gelu"),
        gated=False,
        tied=read.flag("tie_word_embeddings"),
        names=_NAMES,
    )


def _persimmon(read: Reader) -> DecoderConfig:
    names = replace(
        _NAMES,
        embedding="model.embed_tokens",
        layer="model.layers.{}",
        attention="self_attn",
        joined="self_attn.query_key_value",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        output="self_attn.dense",
        norm="model.final_layernorm",
        head="lm_head",
    )
    return replace(
        _read(read),
        pattern=(Layer(read.rope(share=0.5)),),
        parallel=False,
        query_key_norm="layer" if read.flag("qk_layernorm", default=True) else None,
        activation=read.activation("hidden_act", default="relu2"),
        names=names,
    )


GPT_NEOX = decoder_family("gpt_neox", _read, tied=("gpt_neox.embed_in", "embed_out"))
PERSIMMON = decoder_family("persimmon", _persimmon)
