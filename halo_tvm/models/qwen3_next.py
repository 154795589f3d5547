"""Qwen3-Next and the language models of Qwen 3.5: linear attention by the gated delta rule, and gated attention.

References
    arXiv:2412.06464 (Gated DeltaNet); Qwen3-Next and Qwen 3.5 (their model cards)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, DeltaRule, Layer, Reader, decoder_family
from .llama import llama
from .mixtures import NORMED, dense_layers, mixture_of

_NAMES = replace(NORMED, embedding="embed_tokens", layer="layers.{}", norm="norm")


def _types(read: Reader) -> list[bool]:
    """Which layers attend: those that `layer_types` calls so, else every `full_attention_interval`-th."""
    types = read.layer_types(("full_attention", "linear_attention"))
    if types is None:
        every = max(1, read.whole("full_attention_interval", default=4))
        return [(i + 1) % every == 0 for i in range(read.layers)]
    return [kind == "full_attention" for kind in types]


def _next(read: Reader, *, joined: bool = True, **differences: object) -> DecoderConfig:
    read.refuse_unless(attention_bias=False, hidden_act="silu")
    eps = read.number("rms_norm_eps", default=1e-6)
    heads, key_heads = read.whole("linear_num_value_heads", default=32), read.whole("linear_num_key_heads", default=16)
    if key_heads < 1 or heads % key_heads:
        read.refuse("linear_num_value_heads as a multiple of linear_num_key_heads", f"{heads} and {key_heads}")
    rule = DeltaRule(
        key_heads=key_heads,
        key_size=read.whole("linear_key_head_dim", default=128),
        heads=heads,
        head_size=read.whole("linear_value_head_dim", default=128),
        kernel=read.kernel("linear_conv_kernel_dim"),
        norm_eps=eps,
        joined=joined,
    )
    attention = Layer(read.rope(share=0.25))
    return llama(
        read,
        pattern=tuple(attention if attends else Layer(mixer=rule) for attends in _types(read)),
        eps=eps,
        norm_plus_one=True,
        query_key_norm="head",
        query_gate=True,
        names=_NAMES,
        **differences,
    )


def _sparse(read: Reader, *, joined: bool = True) -> DecoderConfig:
    """With an expert for all tokens, which a sigmoid of the token switches."""
    mixture = mixture_of(
        read,
        width="moe_intermediate_size",
        normalised=read.flag("norm_topk_prob", default=True),
        shared=read.whole("shared_expert_intermediate_size"),
        shared_switch=True,
        dense=dense_layers(read),
    )
    words = {"intermediate_size": read.whole("moe_intermediate_size"), **read.config}  # of layers that are dense
    return replace(_next(Reader(words), joined=joined), mixture=mixture)


def _qwen3_5(read: Reader) -> DecoderConfig:
    return _next(read, joined=False)


def _qwen3_5_moe(read: Reader) -> DecoderConfig:
    return _sparse(read, joined=False)


_SHARED = {"prefixes": ("model.", ""), "tied": ("embed_tokens", "lm_head"), "even": ("head_dim",)}
QWEN3_NEXT = decoder_family("qwen3_next", _sparse, **_SHARED)  # type: ignore[arg-type]
QWEN3_5 = decoder_family("qwen3_5", _qwen3_5, types=("qwen3_5_text",), **_SHARED)  # type: ignore[arg-type]
QWEN3_5_MOE = decoder_family("qwen3_5_moe", _qwen3_5_moe, types=("qwen3_5_moe_text",), **_SHARED)  # type: ignore[arg-type]
