"""Phi 1 and 2 (parallel residual, partial rotation, biases everywhere) and Phi 3 and 4 (Llama with fused tensors).

References
    arXiv:2309.05463 (Phi 1.5), arXiv:2404.14219 (Phi 3)
"""

from __future__ import annotations

from dataclasses import replace

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family
from .llama import llama


def _phi(read: Reader) -> DecoderConfig:
    return DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        kv_heads=read.whole("num_key_value_heads", default=read.heads),
        feed_forward=read.whole("intermediate_size"),
        vocabulary=read.whole("vocab_size"),
        positions=read.context,
        pattern=(Layer(read.rope(share=0.5)),),
        norm="layer",
        eps=read.number("layer_norm_eps", default=1e-5),
        parallel=True,
        query_key_norm="layer" if read.flag("qk_layernorm") else None,
        query_key_value_bias=True,
        output_bias=True,
        ffn_bias=True,
        head_bias=True,
        activation=read.activation("hidden_act", default="gelu_new"),
        gated=False,
        tied=read.flag("tie_word_embeddings"),
        names=Names(
            query_norm="self_attn.q_layernorm",
            key_norm="self_attn.k_layernorm",
            output="self_attn.dense",
            ffn_norm="",
            up="mlp.fc1",
            down="mlp.fc2",
            norm="model.final_layernorm",
        ),
    )


def _phi3(read: Reader) -> DecoderConfig:
    window, rope = read.get("sliding_window"), read.rope()
    pattern = read.pattern(
        (window is not None,),
        None if window is None else int(window),  # type: ignore[call-overload]
        {True: rope, False: rope},
    )
    names = Names(joined="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
    return replace(llama(read, pattern=pattern), names=names)


PHI = decoder_family("phi", _phi)
PHI3 = decoder_family("phi3", _phi3)
