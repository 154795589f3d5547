"""GPT-NeoX and Pythia: attention and feed-forward in parallel, a quarter of each head turned, q, k, v in one tensor.

References
    arXiv:2204.06745
"""

from __future__ import annotations

from .decoder import DecoderConfig, Layer, Names, Reader, decoder_family

_NAMES = Names(
    embedding="gpt_neox.embed_in",
    layer="gpt_neox.layers.{}",
    attention="attention",
    joined="attention.query_key_value",
    grouped=True,
    output="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
)


def _read(read: Reader) -> DecoderConfig:
    bias = read.flag("attention_bias", default=True)
    return DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        feed_forward=read.whole("intermediate_size"),
        vocabulary=read.whole("vocab_size"),
        positions=read.context,
        pattern=(Layer(read.rope(share=0.25)),),
        norm="layer",
        eps=read.number("layer_norm_eps", default=1e-5),
        parallel=read.flag("use_parallel_residual", default=True),
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=True,
        activation=read.activation("hidden_act", default="gelu"),
        gated=False,
        tied=read.flag("tie_word_embeddings"),
        names=_NAMES,
    )


GPT_NEOX = decoder_family("gpt_neox", _read, tied=("gpt_neox.embed_in", "embed_out"))
