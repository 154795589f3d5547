"""Llama and what shares its layers: RMS norms in front, rotary positions, grouped queries, a gated feed-forward.

Mistral has a window, Qwen2 biases, Qwen3 norms of queries and keys, SmolLM3 layers without positions, Granite
multipliers; their tensors have the same names.
References
    arXiv:2302.13971, arXiv:2407.21783 (Llama), arXiv:2310.06825 (Mistral), arXiv:2407.10671 (Qwen2)
"""

from __future__ import annotations

from dataclasses import replace

from ._decoder import DecoderConfig, Layer, Names, Reader, decoder_family


def llama(read: Reader, **differences: object) -> DecoderConfig:
    """What a config of Llama's words says; `differences` are fields of the result."""
    read.refuse_unless(mlp_bias=False, pretraining_tp=1)
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
        tied=read.flag("tie_word_embeddings"),
    )
    if "pattern" not in differences:
        differences["pattern"] = (Layer(read.rope()),)
    return replace(common, **differences)  # type: ignore[arg-type]


def _windowed(read: Reader) -> DecoderConfig:
    """Mistral: all layers slide where a window is given; Qwen2: only where `use_sliding_window` says so too."""
    window = read.get("sliding_window")
    used = window is not None and read.flag("use_sliding_window", default=read.kind in ("mistral", "ministral"))
    first = read.whole("max_window_layers", default=0) if read.kind.startswith("qwen") else 0
    usual = [used and i >= first for i in range(read.layers)]
    rope = read.rope()
    pattern = read.pattern(usual, int(window) if used else None, {True: rope, False: rope})  # type: ignore[call-overload]
    return llama(read, pattern=pattern)


def _qwen2(read: Reader) -> DecoderConfig:
    return replace(_windowed(read), query_key_value_bias=True, output_bias=False)


def _qwen3(read: Reader) -> DecoderConfig:
    names = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
    return replace(_windowed(read), query_key_norm="head", names=names)


def _smollm3(read: Reader) -> DecoderConfig:
    """Every fourth layer has no positions, unless `no_rope_layers` (1: has) says otherwise."""
    every = read.whole("no_rope_layer_interval", default=4)
    turned = read.get("no_rope_layers", default=[int((i + 1) % every != 0) for i in range(read.layers)])
    if not isinstance(turned, list) or len(turned) < read.layers or set(turned) - {0, 1}:
        raise TypeError(f"no_rope_layers {turned!r} is no list of 0 and 1 for every layer")
    if read.flag("use_sliding_window"):
        read.refuse("use_sliding_window false", "true")
    rope = read.rope(theta=2000000.0)
    return llama(read, pattern=tuple(Layer(rope if has else None) for has in turned[: read.layers]))


def _granite(read: Reader) -> DecoderConfig:
    return llama(
        read,
        scale=read.number("attention_multiplier", default=1.0),
        embedding_scale=read.number("embedding_multiplier", default=1.0),
        residual_scale=read.number("residual_multiplier", default=1.0),
        logit_scale=1 / read.number("logits_scaling", default=1.0),
    )


LLAMA = decoder_family("llama", llama, even=("head_dim",))
MISTRAL = decoder_family("mistral", _windowed, types=("mistral", "ministral"), even=("head_dim",))
QWEN2 = decoder_family("qwen2", _qwen2, even=("head_dim",))
QWEN3 = decoder_family("qwen3", _qwen3, even=("head_dim",))
SMOLLM3 = decoder_family("smollm3", _smollm3, even=("head_dim",))
GRANITE = decoder_family("granite", _granite, even=("head_dim",))
