"""OLMo, and EXAONE: from OLMo 2 on, norms stand behind attention and feed-forward instead of in front.

OLMo has norms without weights, OLMo 2 norms over all queries and all keys, OLMo 3 windows as well; EXAONE 4 norms over
every head, and windows in layers that know positions. EXAONE 3 has Llama's layers under names of its own.
References
    arXiv:2402.00838 (OLMo), arXiv:2501.00656 (OLMo 2), arXiv:2507.11407 (EXAONE 4)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family
from .llama import llama

_NAMES = Names(
    attention_norm="",
    attention_post_norm="post_attention_layernorm",
    ffn_norm="",
    ffn_post_norm="post_feedforward_layernorm",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
)


def _olmo(read: Reader) -> DecoderConfig:
    return llama(read, norm="layer", norm_weight=False, eps=1e-5, clip=read.optional("clip_qkv"))


def olmo2(read: Reader) -> DecoderConfig:
    return replace(llama(read), query_key_norm="all", names=_NAMES)


def _olmo3(read: Reader) -> DecoderConfig:
    """Three of four layers slide, and a longer context stretches the frequencies of the others alone."""
    whole, local = read.rope("full_attention", theta=500000.0), read.local_rope("rope_theta", theta=500000.0)
    pattern = read.pattern((True, True, True, False), read.whole("sliding_window"), {True: local, False: whole})
    return replace(olmo2(read), pattern=pattern)


def _exaone3(read: Reader) -> DecoderConfig:
    names = Names(
        embedding="transformer.wte",
        layer="transformer.h.{}",
        attention_norm="ln_1",
        attention="attn",
        query="attn.attention.q_proj",
        key="attn.attention.k_proj",
        value="attn.attention.v_proj",
        output="attn.attention.out_proj",
        ffn_norm="ln_2",
        gate="mlp.c_fc_0",
        up="mlp.c_fc_1",
        down="mlp.c_proj",
        norm="transformer.ln_f",
    )
    eps = read.number("rms_norm_eps", "layer_norm_epsilon", default=1e-5)
    activation = read.activation("hidden_act", "activation_function", default="silu")
    rope = read.rope(theta=500000.0)
    return llama(read, pattern=(Layer(rope),), eps=eps, activation=activation, names=names)


def exaone_layers(read: Reader) -> tuple[Layer, ...]:
    """Where layers have windows, only those know positions."""
    rope = read.rope()
    if read.get("sliding_window") is None:
        return (Layer(rope),)
    usual = [False] if read.get("layer_types") is not None else _sliding(read)
    return read.pattern(usual, read.whole("sliding_window"), {True: rope, False: None})


def _sliding(read: Reader) -> list[bool]:
    """Which layers `sliding_window_pattern` lets slide: all but every so-manyth; or L of letters, not the last one."""
    every = read.get("sliding_window_pattern", default=4)
    if isinstance(every, str) and every:
        return [every[i % len(every)] == "L" and i + 1 < read.layers for i in range(read.layers)]
    every = read.whole("sliding_window_pattern", default=4)
    return [(i + 1) % every != 0 for i in range(every)]


def _exaone4(read: Reader) -> DecoderConfig:
    return llama(read, pattern=exaone_layers(read), query_key_norm="head", names=_NAMES)


OLMO = decoder_family("olmo", _olmo)
OLMO2 = decoder_family("olmo2", olmo2, even=("head_dim",))
OLMO3 = decoder_family("olmo3", _olmo3, even=("head_dim",))
EXAONE = decoder_family("exaone", _exaone3, even=("head_dim",), tied=("transformer.wte", "lm_head"))
EXAONE4 = decoder_family("exaone4", _exaone4, even=("head_dim",))
