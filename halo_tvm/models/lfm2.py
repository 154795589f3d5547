"""LFM2 and LFM3: short gated convolutions, with grouped attention in some layers; also with experts as feed-forward.

References
    arXiv:2511.23404 (LFM2)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, ExpertNames, Layer, Names, Reader, Rope, ShortConvolution, decoder_family
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


def _convolution(read: Reader, *, kernel: int) -> Layer:
    return Layer(mixer=ShortConvolution(read.kernel("conv_L_cache", default=kernel), read.flag("conv_bias")))


def _types(read: Reader) -> list[bool]:
    """Which layers attend: those that `layer_types` calls so, else those that `full_attn_idxs` names, else all."""
    types = read.layer_types(("full_attention", "conv"))
    if types is None:
        return read.named_layers("full_attn_idxs", default=range(read.layers))
    return [kind == "full_attention" for kind in types]


def _lfm2(read: Reader, **differences: object) -> DecoderConfig:
    convolution = _convolution(read, kernel=3)
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


def _lfm3(read: Reader) -> DecoderConfig:
    """Windows in some layers, a gate of every head, norms behind what a layer adds, slow channels that do not turn."""
    words = {"head_dim": 128, **read.config}
    read = Reader(words)
    slides = read.local_rope("rope_theta", theta=1e4)
    kinds = {
        "conv": _convolution(read, kernel=7),
        "sliding_attention": Layer(slides, read.whole("sliding_window", default=256)),
        "full_attention": Layer(_proportional(read)),
    }
    usual = [
        "full_attention" if i % 4 == 2 else "conv" if i % 4 or not i else "sliding_attention"
        for i in range(read.layers)
    ]
    behind = read.flag("use_sandwich_norm", default=True)
    names = replace(
        _NAMES,
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
        output="self_attn.o_proj",
        head_gate="self_attn.gate_proj" if read.flag("use_attention_gate", default=True) else "",
        attention_post_norm="post_operator_norm" if behind else "",
        ffn_post_norm="post_ffn_norm" if behind else "",
    )
    return llama(
        read,
        pattern=tuple(kinds[kind] for kind in read.layer_types(list(kinds)) or usual),
        query_key_norm="head",
        ffn_bias=False,
        activation="silu",
        eps=read.number("norm_eps", "rms_norm_eps", default=1e-5),
        tied=read.flag("tie_embedding", default=read.flag("tie_word_embeddings", default=True)),
        names=names,
    )


def _proportional(read: Reader) -> Rope:
    """The rotation of layers without windows: a share of the pairs of the whole head turns, the fastest ones."""
    scaling = {"rope_type": "proportional", "partial_rotary_factor": 0.5, **read.scaling("full_attention")}
    if scaling["rope_type"] != "proportional":
        return read.rope("full_attention", theta=1e6)
    base, factor = (float(scaling.get(word) or usual) for word, usual in (("rope_theta", 1e6), ("factor", 1.0)))  # type: ignore[arg-type]
    size, share = read.head_dim, float(scaling["partial_rotary_factor"])  # type: ignore[arg-type]
    turned = int(share * size // 2)
    if not (base > 0 and factor > 0 and 0 <= turned <= size // 2):
        read.refuse("rope_theta, factor and a share of channels above 0", repr(dict(scaling))[:120])
    return Rope((*(base ** (-2 * i / size) / factor for i in range(turned)), *(0.0,) * (size // 2 - turned)))


LFM2 = decoder_family("lfm2", _dense, even=("head_dim",))
LFM2_MOE = decoder_family("lfm2_moe", _sparse, even=("head_dim",))
LFM3 = decoder_family("lfm3", _lfm3, even=("head_dim",))
