"""BLOOM and MPT (distances in the scores, ALiBi); Falcon (few KV heads, a parallel feed-forward, or ALiBi).

References
    arXiv:2211.05100 (BLOOM), arXiv:2311.16867 (Falcon)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import Alibi, DecoderConfig, Layer, Names, Reader, decoder_family

_NAMES = Names(
    embedding="transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    layer="transformer.h.{}",
    attention="self_attention",
    joined="self_attention.query_key_value",
    grouped=True,
    output="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    norm="transformer.ln_f",
)


def _older(read: Reader) -> Reader:
    """The width is `n_embed` in the first configs, and goes before `hidden_size`."""
    width = read.get("n_embed")
    return read if width is None else Reader({**read.config, "hidden_size": width})


def _bloom(read: Reader) -> DecoderConfig:
    read = _older(read)
    read.refuse_unless(apply_residual_connection_post_layernorm=False)
    return _common(
        read,
        positions=read.whole("seq_length", default=2048),
        alibi=Alibi(),
        query_key_value_bias=True,
        output_bias=True,
        ffn_bias=True,
        activation="gelu_tanh",
        names=_NAMES,
    )


def _falcon(read: Reader) -> DecoderConfig:
    read = _older(read)
    new, bias = read.flag("new_decoder_architecture"), read.flag("bias")
    few = read.flag("multi_query", default=True) and not new
    parallel = read.flag("parallel_attn", default=True) or new
    two = new and read.whole("num_ln_in_parallel_attn", default=2) == 2
    alibi = Alibi(scale=read.head_dim**-0.5, rounded=True) if read.flag("alibi") else None
    names = replace(
        _NAMES,
        embedding_norm="",
        attention_norm="ln_attn" if two else "input_layernorm",
        ffn_norm="ln_mlp" if two else "" if parallel else "post_attention_layernorm",
        grouped=not few,
    )
    return _common(
        read,
        positions=read.whole("max_position_embeddings", default=2048),
        pattern=(Layer(None if alibi else read.rope()),),
        alibi=alibi,
        kv_heads=1 if few else read.whole("num_kv_heads", default=read.heads) if new else read.heads,
        feed_forward=read.whole("ffn_hidden_size", default=4 * read.hidden),
        parallel=parallel,
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        activation=read.activation("activation", default="gelu"),
        names=names,
    )


def _common(read: Reader, **differences: object) -> DecoderConfig:
    common: dict[str, object] = {
        "layers": read.layers,
        "hidden": read.hidden,
        "heads": read.heads,
        "feed_forward": 4 * read.hidden,
        "vocabulary": read.whole("vocab_size"),
        "norm": "layer",
        "eps": read.number("layer_norm_epsilon", default=1e-5),
        "gated": False,
        "tied": read.flag("tie_word_embeddings", default=True),
    }
    return DecoderConfig(**{**common, **differences})  # type: ignore[arg-type]


_MPT = Names(
    embedding="transformer.wte",
    layer="transformer.blocks.{}",
    attention_norm="norm_1",
    attention="attn",
    joined="attn.Wqkv",
    output="attn.out_proj",
    ffn_norm="norm_2",
    ffn="ffn",
    up="ffn.up_proj",
    down="ffn.down_proj",
    norm="transformer.norm_f",
)


def _mpt(read: Reader) -> DecoderConfig:
    about = read.get("attn_config", default={})
    attention = Reader({"model_type": read.kind, **about}) if isinstance(about, dict) else read
    attention.refuse_unless(attn_type="multihead_attention", qk_ln=False, prefix_lm=False, alibi=True, alibi_bias_max=8)
    read.refuse_unless(no_bias=True, logit_scale=None)
    hidden = read.whole("d_model")
    return DecoderConfig(
        layers=read.whole("n_layers"),
        hidden=hidden,
        heads=read.whole("n_heads"),
        feed_forward=int(read.number("expansion_ratio", default=4) * hidden),
        vocabulary=read.whole("vocab_size"),
        positions=read.whole("max_seq_len", default=2048),
        alibi=Alibi(),
        norm="layer",
        norm_bias=False,
        eps=read.number("layer_norm_epsilon", default=1e-5),
        scale=attention.optional("softmax_scale"),
        clip=attention.optional("clip_qkv"),
        activation="gelu",
        gated=False,
        tied=read.flag("tie_word_embeddings", default=True),
        names=_MPT,
    )


_TIED = ("transformer.word_embeddings", "lm_head")
BLOOM = decoder_family("bloom", _bloom, tied=_TIED)
FALCON = decoder_family("falcon", _falcon, tied=_TIED)
MPT = decoder_family("mpt", _mpt, tied=("transformer.wte", "lm_head"))
