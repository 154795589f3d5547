"""Llama and what shares its layers: RMS norms in front, rotary positions, grouped queries, a gated feed-forward.

Mistral and CWM have windows, Qwen2, Seed-OSS and InternLM 3 biases, Qwen3 and HunYuan norms of queries and keys
(HunYuan's behind the rotation), SmolLM3 layers without positions, Granite and HyperCLOVA X multipliers, ERNIE 4.5 and
Helium neighbouring channels turned; their tensors have the same names.
References
    arXiv:2302.13971, arXiv:2407.21783 (Llama), arXiv:2310.06825 (Mistral), arXiv:2407.10671 (Qwen2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family


def llama(read: Reader, **differences: object) -> DecoderConfig:
    """What a config of Llama's words says; `differences` are fields of the result."""
    bias = read.flag("attention_bias")
    common = DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        kv_heads=read.whole("num_key_value_heads", default=read.heads),
        head_dim=read.head_dim,
        feed_forward=read.whole("intermediate_size"),
        vocabulary=read.whole("vocab_size"),
        positions=read.context,
        eps=read.number("rms_norm_eps", default=1e-6),
        activation=read.activation("hidden_act", default="silu"),
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=read.flag("mlp_bias"),
        tied=read.flag("tie_word_embeddings"),
    )
    if "pattern" not in differences:
        differences["pattern"] = (Layer(read.rope()),)
    return replace(common, **differences)  # type: ignore[arg-type]


_MISTRAL = ("mistral", "ministral", "ministral3")
_QWEN2_INSIDE = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text")


def windowed(read: Reader, slides: Sequence[bool] = (True,), *, always: bool = False) -> DecoderConfig:
    """Mistral, `always`: layers slide where a window is given; Qwen: only where `use_sliding_window` says so.

    `slides` says, repeated, which do then, where no `layer_types` say it.
    """
    window = read.get("sliding_window")
    used = window is not None and read.flag("use_sliding_window", default=always or read.kind in _MISTRAL)
    rope = read.rope()
    usual = slides if used else (False,)
    pattern = read.pattern(usual, int(window) if used else None, {True: rope, False: rope})  # type: ignore[call-overload]
    return llama(read, pattern=pattern)


def _late_windows(read: Reader) -> DecoderConfig:
    """Windows in the layers behind the first `max_window_layers`."""
    first = read.whole("max_window_layers", default=28)
    return windowed(read, [i >= first for i in range(read.layers)])


def _qwen2(read: Reader) -> DecoderConfig:
    return replace(_late_windows(read), query_key_value_bias=True, output_bias=False)


def _qwen3(read: Reader) -> DecoderConfig:
    """The language model of one that sees has no windows, whatever its config says."""
    config = llama(read) if read.kind == "qwen3_vl_text" else _late_windows(read)
    return replace(
        config, query_key_norm="head", names=Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
    )


def _smollm3(read: Reader) -> DecoderConfig:
    """Every fourth layer has no positions, unless `no_rope_layers` (1: has) says otherwise."""
    every = read.whole("no_rope_layer_interval", default=4)
    turned = read.get("no_rope_layers", default=[int((i + 1) % every != 0) for i in range(read.layers)])
    if not isinstance(turned, list) or len(turned) < read.layers or set(turned) - {0, 1}:
        raise TypeError(f"no_rope_layers {turned!r} is no list of 0 and 1 for every layer")
    read.refuse_unless(use_sliding_window=False)
    rope = read.rope(theta=2000000.0)
    return llama(read, pattern=tuple(Layer(rope if has else None) for has in turned[: read.layers]))


def _ernie(read: Reader) -> DecoderConfig:
    bias = read.flag("use_bias")
    return llama(
        read,
        pattern=(Layer(read.rope(interleaved=read.kind == "ernie4_5", theta=500000.0)),),
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        tied=read.flag("tie_word_embeddings", default=True),
    )


def _helium(read: Reader) -> DecoderConfig:
    return replace(llama(read, pattern=(Layer(read.rope(interleaved=True, theta=100000.0)),)), output_bias=False)


def _seed_oss(read: Reader) -> DecoderConfig:
    bias = read.flag("attention_bias", default=True)
    return llama(read, query_key_value_bias=bias, output_bias=read.flag("attention_out_bias"))


def _internlm3(read: Reader) -> DecoderConfig:
    bias = read.flag("qkv_bias", default=read.flag("attention_bias"))
    ffn = read.flag("bias", default=read.flag("mlp_bias"))
    return llama(read, query_key_value_bias=bias, output_bias=bias, ffn_bias=ffn)


def _cwm(read: Reader) -> DecoderConfig:
    """Three of four layers slide."""
    rope = read.rope(theta=1e6)
    usual = (False, True, True, True)
    return llama(read, pattern=read.pattern(usual, read.whole("sliding_window"), {True: rope, False: rope}))


def hunyuan(read: Reader) -> DecoderConfig:
    names = Names(query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm")
    return llama(read, query_key_norm="head", norm_turned=True, names=names)


def granite(read: Reader) -> DecoderConfig:
    return llama(
        read,
        scale=read.number("attention_multiplier", default=1.0),
        embedding_scale=read.number("embedding_multiplier", default=1.0),
        residual_scale=read.number("residual_multiplier", default=1.0),
        logit_scale=1 / read.number("logits_scaling", default=1.0),
    )


def _hyperclovax(read: Reader) -> DecoderConfig:
    """Granite's multipliers, the last one not inverted, and norms behind what a layer adds."""
    behind = read.flag("use_post_norm", default=True)
    return replace(
        granite(read),
        scale=read.number("attention_multiplier", default=read.head_dim**-0.5),
        logit_scale=read.number("logits_scaling", default=1.0),
        names=Names(attention_post_norm="post_norm1", ffn_post_norm="post_norm2") if behind else Names(),
    )


LLAMA = decoder_family("llama", llama, types=("llama", "iquestcoder"), even=("head_dim",))
MISTRAL = decoder_family("mistral", windowed, types=_MISTRAL, even=("head_dim",))
QWEN2 = decoder_family("qwen2", _qwen2, types=("qwen2", *_QWEN2_INSIDE), even=("head_dim",))
QWEN3 = decoder_family("qwen3", _qwen3, types=("qwen3", "qwen3_vl_text"), even=("head_dim",))
SMOLLM3 = decoder_family("smollm3", _smollm3, even=("head_dim",))
GRANITE = decoder_family("granite", granite, types=("granite", "granite_docling_text"), even=("head_dim",))
HYPERCLOVAX = decoder_family("hyperclovax", _hyperclovax, even=("head_dim",))
ERNIE = decoder_family("ernie4_5", _ernie, types=("ernie4_5", "paddleocr_vl_text"))
HELIUM = decoder_family("helium", _helium)
SEED_OSS = decoder_family("seed_oss", _seed_oss, even=("head_dim",))
INTERNLM3 = decoder_family("internlm3", _internlm3, even=("head_dim",))
CWM = decoder_family("cwm", _cwm, even=("head_dim",))
HUNYUAN = decoder_family("hunyuan_v1_dense", hunyuan, even=("head_dim",))
