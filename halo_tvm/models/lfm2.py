"""LFM2: short gated convolutions, with grouped attention in some layers; as feed-forward also a mixture of experts.

References
    arXiv:2511.23404 (LFM2)
"""

from __future__ import annotations

from .decoder import DecoderConfig, ExpertNames, Layer, Names, Reader, ShortConvolution, decoder_family
from .llama import llama
from .mixtures import mixture_of

_NAMES = Names(
    attention_norm="operator_norm",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    output="self_attn.out_proj",
    ffn_norm="ffn_norm",
    ffn="feed_forward",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    norm="model.embedding_norm",
)
_EXPERTS = ExpertNames(
    router="feed_forward.gate",
    correction="feed_forward.expert_bias",
    gate="feed_forward.experts.{}.w1",
    up="feed_forward.experts.{}.w3",
    down="feed_forward.experts.{}.w2",
    stacked_gate_up="feed_forward.experts.gate_up_proj",
    stacked_down="feed_forward.experts.down_proj",
)


def _types(read: Reader) -> list[bool]:
    """Which layers attend: those that `layer_types` calls so, else those that `full_attn_idxs` names, else all."""
    types = read.get("layer_types")
    if types is None:
        named = read.get("full_attn_idxs", default=list(range(read.layers)))
        if not isinstance(named, list):
            raise TypeError(f"full_attn_idxs {named!r} is no list of layers")
        return [i in named for i in range(read.layers)]
    known = {"full_attention": True, "conv": False}
    if not isinstance(types, list) or len(types) < read.layers or any(t not in known for t in types):
        read.refuse(f"layer_types of {' or '.join(known)} for every layer", repr(types)[:80])
    return [known[t] for t in types[: read.layers]]


def _lfm2(read: Reader, **differences: object) -> DecoderConfig:
    kernel = read.whole("conv_L_cache", default=3)
    if not 2 <= kernel <= 64:
        read.refuse("conv_L_cache from 2 to 64", str(kernel))
    convolution = Layer(mixer=ShortConvolution(kernel, read.flag("conv_bias")))
    attention = Layer(read.rope(theta=1e6))
    return llama(
        read,
        pattern=tuple(attention if attends else convolution for attends in _types(read)),
        query_key_norm="head",
        query_key_value_bias=False,
        output_bias=False,
        ffn_bias=False,
        activation="silu",
        eps=read.number("norm_eps", default=1e-5),
        tied=read.flag("tie_embedding", default=read.flag("tie_word_embeddings", default=True)),
        names=_NAMES,
        **differences,
    )


def _dense(read: Reader) -> DecoderConfig:
    """Widths are two thirds of what the config says, rounded up, unless it says that they are not to be adjusted."""
    width = read.whole("block_ff_dim", "intermediate_size")
    if read.flag("block_auto_adjust_ff_dim", default=True):
        multiple = read.whole("block_multiple_of", default=256)
        width = int(read.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
        width = -(-width // max(1, multiple)) * multiple
    return _lfm2(Reader({**read.config, "intermediate_size": width}))


def _sparse(read: Reader) -> DecoderConfig:
    mixture = mixture_of(
        read,
        width="moe_intermediate_size",
        scores="sigmoid",
        correction=read.flag("use_expert_bias", default=True),
        normalised=read.flag("norm_topk_prob", default=True),
        scale=read.number("routed_scaling_factor", default=1.0),
        dense=tuple(range(min(read.layers, read.whole("num_dense_layers", default=2)))),
        names=(_EXPERTS,),
    )
    return _lfm2(read, mixture=mixture)


LFM2 = decoder_family("lfm2", _dense, even=("head_dim",))
LFM2_MOE = decoder_family("lfm2_moe", _sparse, even=("head_dim",))
