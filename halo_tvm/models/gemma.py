"""Gemma 1, 2 and 3: norms of one plus the weight, a scaled embedding, wide heads; soft caps, windows, two rotations.

References
    arXiv:2403.08295 (Gemma), arXiv:2408.00118 (Gemma 2), arXiv:2503.19786 (Gemma 3)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, Names, Reader, decoder_family
from .llama import llama

_BOTH = Names(
    attention_post_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    ffn_post_norm="post_feedforward_layernorm",
)


def _gemma(read: Reader, **differences: object) -> DecoderConfig:
    common = llama(read, embedding_scale=read.hidden**0.5, norm_plus_one=True, **differences)
    first = read.kind == "gemma" and read.get("hidden_activation") is None
    activation = read.activation("hidden_act" if first else "hidden_activation", default="gelu_pytorch_tanh")
    if first and activation == "gelu":  # the first configs said so and meant its approximation by tanh
        activation = "gelu_tanh"
    return replace(common, activation=activation, tied=read.flag("tie_word_embeddings", default=True))


def _gemma2(read: Reader) -> DecoderConfig:
    rope = read.rope()
    return _gemma(
        read,
        pattern=read.pattern((True, False), read.whole("sliding_window", default=4096), {True: rope, False: rope}),
        scale=read.number("query_pre_attn_scalar", default=256) ** -0.5,
        softcap=read.optional("attn_logit_softcapping", default=50.0),
        logit_softcap=read.optional("final_logit_softcapping", default=30.0),
        names=_BOTH,
    )


def _gemma3(read: Reader) -> DecoderConfig:
    read.refuse_unless(use_bidirectional_attention=False)
    every = read.whole("sliding_window_pattern", default=6)
    whole = read.rope("full_attention", theta=1e6)
    local = read.local_rope("rope_local_base_freq", theta=10000.0)
    return replace(
        _gemma2(read),
        pattern=read.pattern(
            [(i + 1) % every != 0 for i in range(every)],
            read.whole("sliding_window", default=4096),
            {True: local, False: whole},
        ),
        softcap=None,  # attn_logit_softcapping is Gemma 2's
        logit_softcap=read.optional("final_logit_softcapping"),
        query_key_norm="head",
        names=replace(_BOTH, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
    )


def _vaultgemma(read: Reader) -> DecoderConfig:
    """Gemma 2 without norms behind attention and feed-forward."""
    return replace(_gemma2(read), names=Names(ffn_norm="pre_feedforward_layernorm"))


GEMMA = decoder_family("gemma", _gemma, even=("head_dim",))
GEMMA2 = decoder_family("gemma2", _gemma2, even=("head_dim",))
GEMMA3 = decoder_family("gemma3", _gemma3, types=("gemma3_text",), even=("head_dim",))
VAULTGEMMA = decoder_family("vaultgemma", _vaultgemma, even=("head_dim",))
