"""StableLM, StarCoder 2, Cohere (Command R, R7B) and GLM: Llama's tensors with layer norms, biases or other rotations.

References
    arXiv:2402.17834 (StableLM 2), arXiv:2402.19173 (StarCoder 2), arXiv:2406.12793 (GLM-4)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family
from .llama import llama


def _stablelm(read: Reader) -> DecoderConfig:
    parallel = read.flag("use_parallel_residual")
    return llama(
        read,
        pattern=(Layer(read.rope(share=0.25)),),
        norm="layer",
        eps=read.number("layer_norm_eps", default=1e-5),
        parallel=parallel,
        query_key_norm="each" if read.flag("qk_layernorm") else None,
        query_key_value_bias=read.flag("use_qkv_bias"),
        names=Names(
            query_norm="self_attn.q_layernorm.norms.{}",
            key_norm="self_attn.k_layernorm.norms.{}",
            ffn_norm="" if parallel else "post_attention_layernorm",
        ),
    )


def _starcoder2(read: Reader) -> DecoderConfig:
    bias, window, rope = read.flag("use_bias", default=True), read.get("sliding_window"), read.rope()
    pattern = read.pattern(
        (window is not None,),
        None if window is None else int(window),  # type: ignore[call-overload]
        {True: rope, False: rope},
    )
    return llama(
        read,
        pattern=pattern,
        norm="layer",
        eps=read.number("norm_epsilon", default=1e-5),
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        gated=False,
        tied=read.flag("tie_word_embeddings", default=True),
        names=Names(up="mlp.c_fc", down="mlp.c_proj"),
    )


def _cohere(read: Reader) -> DecoderConfig:
    normed = read.kind == "cohere" and read.flag("use_qk_norm")
    return llama(
        read,
        pattern=(Layer(read.rope(interleaved=True)),),
        norm="layer",
        norm_bias=False,
        eps=read.number("layer_norm_eps", default=1e-5),
        parallel=True,
        query_key_norm="each" if normed else None,
        logit_scale=read.number("logit_scale", default=0.0625),
        tied=read.flag("tie_word_embeddings", default=True),
        names=Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm", ffn_norm=""),
    )


def _cohere2(read: Reader) -> DecoderConfig:
    """Layers that slide know positions, every fourth one knows none and sees all."""
    every = read.whole("sliding_window_pattern", default=4)
    usual = [(i + 1) % every != 0 for i in range(every)]
    pattern = read.pattern(usual, read.whole("sliding_window"), {True: read.rope(interleaved=True), False: None})
    return replace(_cohere(read), pattern=pattern)


def _glm(read: Reader) -> DecoderConfig:
    names = Names(gate_up="mlp.gate_up_proj")
    if read.kind != "glm":
        names = replace(names, attention_post_norm="post_self_attn_layernorm", ffn_post_norm="post_mlp_layernorm")
    share = 0.5 if read.kind in ("glm", "glm4") else 1.0
    return llama(read, pattern=(Layer(read.rope(interleaved=True, share=share)),), output_bias=False, names=names)


STABLELM = decoder_family("stablelm", _stablelm)
STARCODER2 = decoder_family("starcoder2", _starcoder2)
COHERE = decoder_family("cohere", _cohere)
COHERE2 = decoder_family("cohere2", _cohere2)
GLM = decoder_family("glm", _glm, types=("glm", "glm4", "glm4v_text", "glm_ocr_text"))
