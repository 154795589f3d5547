"""OPT: learned positions from row 2 on, ReLU; the smallest has an embedding of another width and norms behind. BioGPT.

References
    arXiv:2205.01068, arXiv:2210.10341 (BioGPT)
"""

from __future__ import annotations

from .decoder import DecoderConfig, Names, Reader, decoder_family

_BIOGPT = Names(
    embedding="biogpt.embed_tokens",
    positions="biogpt.embed_positions",
    layer="biogpt.layers.{}",
    attention_norm="self_attn_layer_norm",
    output="self_attn.out_proj",
    ffn_norm="final_layer_norm",
    up="fc1",
    down="fc2",
    norm="biogpt.layer_norm",
    head="output_projection",
)


def _biogpt(read: Reader) -> DecoderConfig:
    return DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        feed_forward=read.whole("intermediate_size"),
        vocabulary=read.whole("vocab_size"),
        positions=read.whole("max_position_embeddings"),
        position_offset=2,
        norm="layer",
        eps=1e-5,  # transformers does not read layer_norm_eps either, which is 1e-12 in configs
        query_key_value_bias=True,
        output_bias=True,
        ffn_bias=True,
        activation=read.activation("hidden_act", default="gelu"),
        gated=False,
        embedding_scale=read.hidden**0.5 if read.flag("scale_embedding", default=True) else None,
        tied=read.flag("tie_word_embeddings", default=True),
        names=_BIOGPT,
    )


def _read(read: Reader) -> DecoderConfig:
    read.refuse_unless(_remove_final_layer_norm=False, layer_norm_elementwise_affine=True)
    bias, front = read.flag("enable_bias", default=True), read.flag("do_layer_norm_before", default=True)
    return DecoderConfig(
        layers=read.layers,
        hidden=read.hidden,
        heads=read.heads,
        feed_forward=read.whole("ffn_dim"),
        vocabulary=read.whole("vocab_size"),
        positions=read.whole("max_position_embeddings"),
        embedding_width=read.whole("word_embed_proj_dim", default=read.hidden),
        position_offset=2,
        norm="layer",
        norm_behind=not front,
        query_key_value_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        activation=read.activation("activation_function", default="relu"),
        gated=False,
        tied=read.flag("tie_word_embeddings", default=True),
        names=Names(
            embedding="decoder.embed_tokens",
            project_in="decoder.project_in",
            project_out="decoder.project_out",
            positions="decoder.embed_positions",
            layer="decoder.layers.{}",
            attention_norm="self_attn_layer_norm",
            output="self_attn.out_proj",
            ffn_norm="final_layer_norm",
            up="fc1",
            down="fc2",
            norm="decoder.final_layer_norm" if front else "",
        ),
    )


OPT = decoder_family("opt", _read, prefixes=("", "model."), tied=("decoder.embed_tokens", "lm_head"))
BIOGPT = decoder_family("biogpt", _biogpt, tied=("biogpt.embed_tokens", "output_projection"))
